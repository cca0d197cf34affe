"""A libnvidia-ml.so.1 for tests: C that gcc builds, driven by a machine profile rendered to a flat file."""
