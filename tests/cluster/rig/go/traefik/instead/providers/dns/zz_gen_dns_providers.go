// Package dns names no DNS provider for ACME challenges. The original names 180, with the clients of all large clouds: a third of Traefik's
// packages. The rig needs none of them.
package dns

import (
	"fmt"

	"github.com/go-acme/lego/v5/challenge"
)

// NewDNSChallengeProviderByName returns an error for each name.
func NewDNSChallengeProviderByName(name string) (challenge.Provider, error) {
	return nil, fmt.Errorf("the rig's Traefik has no DNS provider %s", name)
}
