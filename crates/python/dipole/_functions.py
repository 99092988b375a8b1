"""Functions as bytes: by cloudpickle, if it is installed, which also takes functions of notebooks."""

import pickle


def dumps(value: object) -> bytes:
    """Encodes a function and its arguments for `pickle.loads`."""
    try:
        import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return pickle.dumps(value)
    encoded: bytes = cloudpickle.dumps(value)
    return encoded
