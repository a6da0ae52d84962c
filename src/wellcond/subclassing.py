"""A module takes a subclass of its own class, made on the spot: a mixin in front of the class it had. Floor 0.

Parameters, buffers, state-dict keys and the object itself stay. A class and plain attributes are what `torch.compile`
guards on and `copy.deepcopy` copies; hooks are neither, and a compiled model would go on without them.

    module.__class__ = subclass(mixin, type(module))        # in
    module.__class__ = module.original                      # out
"""

import functools
from typing import Any, ClassVar


class InFront:
    """Base of such mixins."""

    _prefix: ClassVar[str]  # of the subclass's name
    mixin: ClassVar[type]
    original: ClassVar[type]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copied and pickled by classes that can be imported; the subclass is made again where it arrives."""
        return _empty, (self.mixin, self.original), self.__dict__


@functools.cache
def subclass(mixin: type[InFront], original: type) -> type[Any]:
    """The same class for the same two.

    >>> class Loud(InFront):
    ...     _prefix = "Loud"
    >>> subclass(Loud, dict).__name__, subclass(Loud, dict) is subclass(Loud, dict)
    ('Louddict', True)
    """
    own = {"mixin": mixin, "original": original, "__module__": mixin.__module__}
    return type(f"{mixin._prefix}{original.__name__}", (mixin, original), own)


def _empty(mixin: type[InFront], original: type) -> Any:
    """Before its state arrives: whatever in the state refers back to the object finds this one."""
    return object.__new__(subclass(mixin, original))
