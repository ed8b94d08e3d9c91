"""The version of this package, which every room may name."""

PACKAGE_VERSION = "0.2.0"
