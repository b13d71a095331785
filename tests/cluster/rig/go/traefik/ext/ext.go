// Package ext fills the place of Traefik's optional extensions of HTTP routing. The rig has none, so both types are empty.
package ext

// HTTP extends nothing.
type HTTP struct{}

// Router extends nothing.
type Router struct{}

// DeepCopyInto copies nothing.
func (*HTTP) DeepCopyInto(*HTTP) {}

// DeepCopyInto copies nothing.
func (*Router) DeepCopyInto(*Router) {}
