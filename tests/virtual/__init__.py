"""The virtual GPU: text and builds in this process, everything else in real children on it."""
