"""Models for the tests on a GPU: few weights and wide activations, so that each sample takes megabytes."""
