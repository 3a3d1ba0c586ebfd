"""WHAT HAPPENED: gathers the evidence of a run and turns it into evidence rows. Knows nothing of `analyzers`."""

__version__ = "0.1.0"
