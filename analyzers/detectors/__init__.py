"""One file per question: a Case in, observations out. Siblings never call each other."""
