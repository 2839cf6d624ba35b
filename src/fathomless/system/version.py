"""The version of the library."""

__all__ = ["__version__"]

__version__ = "1.0.0rc1"  #: by Semantic Versioning
