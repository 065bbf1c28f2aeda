"""Modules that stand in for other packages: a program changes one import."""
