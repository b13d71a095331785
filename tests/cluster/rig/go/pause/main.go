// Pause is the first process of every pod on a real node: it keeps the pod's network alive and ends when asked to.
package main

import (
	"context"
	"os/signal"
	"syscall"
)

func main() {
	asked, release := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer release()
	<-asked.Done()
}
