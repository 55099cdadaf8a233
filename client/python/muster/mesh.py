"""Device meshes: an array of ranks, with a group for each line."""

from __future__ import annotations

import ctypes
import math
from ctypes import byref, c_char_p, c_int32, c_int64, c_void_p
from typing import Any, List, Optional, Sequence, Tuple, Union

from . import _abi
from ._library import (Handle, check, encode, get_handle,
                       get_handle_slowly, get_number, get_strings,
                       get_text, library, make_options, to_int32_list)
from ._numbers import to_list
from .errors import ArgumentError
from .groups import Group, is_initialized, read_list, run_init

Dim = Union[int, str]


def _names(names: Optional[Sequence[Optional[str]]]):
    if names is None:
        return None
    return (c_char_p * max(1, len(names)))(*[encode(name) for name in names])


def _sizes(shape: Sequence[int], name: str):
    return to_list(c_int64, shape, name)


def _check_length(name: str, given: int, wanted: int) -> None:
    if given != wanted:
        raise ArgumentError(f"argument {name} must have {wanted} elements, but "
                            f"has {given}")


def _options(dim_names, backends, ndim: int, name_of_names: str = "dim_names"):
    for name, given in ((name_of_names, dim_names), ("backends", backends)):
        if given is not None:
            _check_length(name, len(given), ndim)
    options = make_options(_abi.muster_device_mesh_options)
    kind = ctypes.POINTER(c_char_p)
    if dim_names is not None:
        options.dim_names = ctypes.cast(_names(dim_names), kind)
    if backends is not None:
        options.backends = ctypes.cast(_names(backends), kind)
    return options


class DeviceMesh:
    """An array of ranks with named dimensions.

    Along each dimension the ranks that differ in that coordinate alone form a
    group. In a mesh of shape (2, 4) with the names ("dp", "tp"), rank 5 is at
    (1, 1); its "dp" group has ranks 1 and 5. Functions that make, flatten or
    unflatten a mesh make groups: all ranks of the default group call them in
    the same order. Not for several threads at once.
    """

    def __init__(self, address: int) -> None:
        self._handle = Handle(address, library.muster_device_mesh_release)

    @property
    def ndim(self) -> int:
        return get_number(c_int32, library.muster_device_mesh_ndim,
                          self._handle)

    @property
    def shape(self) -> Tuple[int, ...]:
        return tuple(read_list(c_int64, library.muster_device_mesh_shape,
                               self._handle))

    @property
    def mesh_dim_names(self) -> Tuple[str, ...]:
        """Empty if the dimensions have no names."""
        names = get_strings(library.muster_device_mesh_dim_names, self._handle)
        return tuple(name.decode() for name in names)

    @property
    def device_type(self) -> str:
        return get_text(library.muster_device_mesh_device_type, self._handle)

    @property
    def ranks(self) -> List[int]:
        """The ranks, row-major."""
        return read_list(c_int32, library.muster_device_mesh_ranks,
                         self._handle)

    def size(self, dim: Optional[int] = None) -> int:
        """The number of ranks in all dimensions, or in one."""
        if dim is not None:
            return self.shape[dim]
        return len(self.ranks)

    def __getitem__(self, names: Union[str, Sequence[str]]) -> "DeviceMesh":
        """The slice along these dimensions that contains this process."""
        chosen = [names] if isinstance(names, str) else list(names)
        return _make(library.muster_device_mesh_slice, self._handle,
                     _names(chosen), len(chosen))

    def flatten(self, name: Optional[str] = None,
                backend: Optional[str] = None) -> "DeviceMesh":
        """A mesh with all dimensions as one."""
        return _make(library.muster_device_mesh_flatten, self._handle,
                     encode(name), encode(backend))

    def unflatten(self, dim: Dim, sizes: Sequence[int],
                  dim_names: Optional[Sequence[str]] = None,
                  backends: Optional[Sequence[Optional[str]]] = None
                  ) -> "DeviceMesh":
        """A mesh with dimension `dim` split into dimensions of `sizes`."""
        if isinstance(dim, str):
            dim = self.mesh_dim_names.index(dim)
        return _make(library.muster_device_mesh_unflatten, self._handle, dim,
                     _sizes(sizes, "sizes"), len(sizes),
                     byref(_options(dim_names, backends, len(sizes))))

    def get_group(self, dim: Optional[Dim] = None) -> Group:
        """This process's group along a dimension; None: the only one."""
        if isinstance(dim, str):
            return Group(get_handle(
                library.muster_device_mesh_get_group_by_name, self._handle,
                encode(dim)))
        return Group(get_handle(library.muster_device_mesh_get_group,
                                self._handle, self._only(dim)))

    def get_all_groups(self) -> List[Group]:
        return [self.get_group(dim) for dim in range(self.ndim)]

    def get_local_rank(self, dim: Optional[Dim] = None) -> int:
        """This process's rank along a dimension; -1: it is not in the mesh."""
        if isinstance(dim, str):
            return get_number(
                c_int32, library.muster_device_mesh_get_local_rank_by_name,
                self._handle, encode(dim))
        return get_number(c_int32, library.muster_device_mesh_get_local_rank,
                          self._handle, self._only(dim))

    def _only(self, dim: Optional[int]) -> int:
        if dim is not None:
            return dim
        if self.ndim != 1:
            raise ValueError(f"the mesh has {self.ndim} dimensions: name one")
        return 0

    def get_coordinate(self) -> Optional[List[int]]:
        """The coordinates of this process; None if it is not in the mesh."""
        return read_list(c_int64, library.muster_device_mesh_get_coordinate,
                         self._handle) or None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return get_number(c_int32, library.muster_device_mesh_equal,
                          self._handle, other._handle) != 0

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return get_text(library.muster_device_mesh_to_string, self._handle)


def _make(function, *arguments) -> DeviceMesh:
    return DeviceMesh(get_handle_slowly(
        function, *arguments, undo=library.muster_device_mesh_release))


def _make_first(function, *arguments) -> DeviceMesh:
    """_make for functions that also make the default group."""
    if is_initialized():
        return _make(function, *arguments)
    result = c_void_p()
    run_init(lambda: check(function(*arguments, byref(result))),
             undo=lambda: library.muster_device_mesh_release(result))
    assert result.value is not None
    return DeviceMesh(result.value)


def init_device_mesh(device_type: str, mesh_shape: Sequence[int], *,
                     mesh_dim_names: Optional[Sequence[str]] = None,
                     backends: Optional[Sequence[Optional[str]]] = None,
                     ranks: Optional[Sequence[int]] = None) -> DeviceMesh:
    """Makes a mesh of the ranks from 0 on, row-major, or of `ranks`.

    Makes the default group if there is none. backends: one for each dimension;
    None is the default group's.
    """
    options = byref(_options(mesh_dim_names, backends, len(mesh_shape),
                             "mesh_dim_names"))
    sizes = _sizes(mesh_shape, "mesh_shape")
    if ranks is None:
        return _make_first(library.muster_init_device_mesh, encode(device_type),
                     sizes, len(mesh_shape), options)
    _check_length("ranks", len(ranks), math.prod(mesh_shape))
    return _make_first(library.muster_device_mesh_from_array, encode(device_type),
                 sizes, len(mesh_shape), to_int32_list(ranks), len(ranks),
                 options)


def mesh_from_group(group: Group, device_type: str = "cpu",
                    mesh_dim_name: Optional[str] = None) -> DeviceMesh:
    """Makes a mesh of one dimension from a group's ranks."""
    return _make(library.muster_device_mesh_from_group, group,
                 encode(device_type), encode(mesh_dim_name))


def concatenate_meshes(meshes: Sequence[DeviceMesh]) -> DeviceMesh:
    """Joins the dimensions of meshes of one root."""
    addresses: Any = (c_void_p * max(1, len(meshes)))(
        *[mesh._handle.address for mesh in meshes])
    addresses.kept = list(meshes)  # as long as the call
    return _make(library.muster_device_mesh_concatenate, addresses, len(meshes))
