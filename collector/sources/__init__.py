"""Where evidence comes from: one file per source, each yielding `collector.model.Artifact`."""
