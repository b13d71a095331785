module ratchet.test/rig/crds-aws

go 1.26.0

require github.com/aws/karpenter-provider-aws v1.14.1
