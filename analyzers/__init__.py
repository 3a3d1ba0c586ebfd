"""WHY: turns evidence into observations, a ranking, a verdict and a report. May use `collector`, never the reverse."""
