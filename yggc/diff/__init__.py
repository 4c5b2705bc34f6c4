"""`yggc diff`: what two bundles have apart, from their manifests and from decoding in turns."""
