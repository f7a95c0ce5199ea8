# SPDX-License-Identifier: Apache-2.0
"""Write the list that the programs in this folder are made of: rows.py [--drawn] HOOKS EXPECTED LIST COMPILER...

Every row of shim/hooks/ of the runtime and of the driver, as the preprocessor sees it, becomes one ROW of LIST:
its parameters, a value for each of them, and the effects that expected.txt names for it. A row without an expectation, or an
expectation without a row, is written as well: the programs fail on it.

With --drawn the values are those of the differential fuzzer (tests/fuzz/differ_drawn.c), which draws given and drawn anew
for each call.

It expects nothing: the effects of a row stand in expected.txt alone, for else a wrong row would expect what it does.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# A row as the preprocessor prints it.
ROW = re.compile(r"@@(RUNTIME|DRIVER) (\w+) \((.*?)\) @@", re.S)
MACROS = "#define RUNTIME(symbol, parameters) @@RUNTIME symbol parameters @@\n" \
         "#define DRIVER(symbol, parameters) @@DRIVER symbol parameters @@\n"

# Arguments, by type, or by type and name; for the rest see value(). given is a variable of rows.h.
GIVEN = {
    "CUDA_MEMCPY2D *": "&given.copy_2d",
    "CUDA_MEMCPY3D *": "&given.copy_3d",
    "CUDA_MEMCPY3D_PEER *": "&given.copy_peer",
    "CUDA_MEMCPY3D_BATCH_OP *": "given.copy_batch",
    "CUDA_MEMSET_NODE_PARAMS *": "&given.set",
    "CUgraphNodeParams *": "&given.node",
    "CUmemAccessDesc *": "given.access",
    "CUmemPoolProps *": "&given.pool",
    "CUmemAllocationProp *": "&given.memory",
    "CUmulticastObjectProp *": "&given.multicast",
    "CUmemLocation *": "&given.location",
    "CUctxCreateParams *": "&given.context_parameters",
    "CUmemGenericAllocationHandle *": "&given.handle",
    "CUmemGenericAllocationHandle": "given.handle",
    "CUipcMemHandle *": "&given.ipc",
    "cudaIpcMemHandle_t *": "&given.ipc",
    "CUpointer_attribute": "given.attribute",
    "CUpointer_attribute *": "&given.attribute",
    "CUmemAllocationType": "given.memory_type",
    "CUcontext *": "&given.made",
    "CUcontext context": "given.context",
    "CUcontext peer": "given.made",
    "CUgreenCtx": "given.green",
    "CUdevice": "0",
    "CUstream": "given.stream",
    "cudaStream_t": "given.stream",
    "CUgraph": "given.graph",
    "cudaGraph_t": "given.graph",
    "CUgraph *": "&given.graph_made",
    "cudaGraph_t *": "&given.graph_made",
    "CUgraphNode * nodes": "NULL",
    "cudaGraphNode_t * nodes": "NULL",
    "CUgraphEdgeData * edges": "NULL",
    "cudaGraphEdgeData * edges": "NULL",
    "CUdeviceptr to": "given.to",
    "CUdeviceptr from": "given.from",
    "CUdeviceptr * to": "given.to_batch",
    "CUdeviceptr * from": "given.from_batch",
    "CUdeviceptr ptr": "given.ptr",
    "CUdeviceptr * ptr": "&given.got",
    "CUdeviceptr * base": "&given.got",
    "void * * ptr": "&given.got",
    "void * ptr": "given.ptr",
    "size_t * size": "&given.got_size",
    "size_t * free": "&given.got_size",
    "void * data": "&given.data",
    "void * * data": "given.data_list",
    "size_t size": "given.size",
    "size_t offset": "given.offset",
    "size_t count": "given.count",
    "unsigned int count": "given.count",
    "unsigned int flags": "given.flags",
    "CUstreamCaptureMode": "CU_STREAM_CAPTURE_MODE_RELAXED",
    "enum cudaStreamCaptureMode": "CU_STREAM_CAPTURE_MODE_RELAXED",
}
# In the differential fuzzer also these, by type, by type and name, or by function and name, and before GIVEN's; drawn is
# a variable of differ_drawn.h.
DRAWN = {
    "CUarray": "drawn.array",
    "CUarray *": "&drawn.array_made",
    "CUcontext from_context": "drawn.from_context",
    "CUcontext peer": "drawn.peer",
    "CUcontext to_context": "drawn.to_context",
    "CUdevice": "drawn.device",
    "CUdeviceptr * ptrs": "&given.ptr",
    "CUdevResourceDesc": "drawn.resources",
    "CUDA_ARRAY3D_DESCRIPTOR *": "&drawn.array_3d",
    "CUDA_ARRAY_DESCRIPTOR *": "&drawn.array_2d",
    "CUDA_BATCH_MEM_OP_NODE_PARAMS *": "&drawn.writes_node",
    "CUDA_GRAPH_INSTANTIATE_PARAMS *": "&drawn.instantiate",
    "CUDA_HOST_NODE_PARAMS *": "&drawn.host_node",
    "CUDA_RESOURCE_DESC *": "&drawn.resource",
    "CUDA_RESOURCE_VIEW_DESC *": "NULL",
    "CUDA_TEXTURE_DESC *": "&drawn.texture_how",
    "CUevent *": "&drawn.event_made",
    "CUevent end": "drawn.end",
    "CUevent event": "drawn.start",
    "CUevent start": "drawn.start",
    "CUexecAffinityParam *": "NULL",
    "CUgraphExec": "drawn.exec",
    "CUgraphExec *": "&drawn.exec_made",
    "CUgraphNode": "drawn.node",
    "CUgraphNode * failed": "&drawn.failed",
    "CUgraphNode * node": "&drawn.node_made",
    "CUgreenCtx *": "&drawn.green_made",
    "CUhostFn": "drawn_host",
    "CUlimit": "drawn.limit",
    "CUmem_advise": "CU_MEM_ADVISE_SET_READ_MOSTLY",
    "CUmemAllocationHandleType": "drawn.handle_type",
    "CUmemcpyAttributes *": "drawn.attributes",
    "CUmemLocation * locations": "&given.location",
    "CUmemoryPool": "drawn.pool",
    "CUmemoryPool *": "&drawn.pool_made",
    "CUmemRangeHandleType": "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD",
    "CUstream *": "&drawn.stream_made",
    "CUstreamBatchMemOpParams *": "drawn.writes",
    "CUstreamCallback": "drawn_callback",
    "CUstreamCaptureMode": "drawn.mode",
    "enum cudaStreamCaptureMode": "drawn.mode",
    "CUsurfObject": "drawn.surface",
    "CUsurfObject *": "&drawn.surface_made",
    "CUtexObject": "drawn.texture",
    "CUtexObject *": "&drawn.texture_made",
    "char * log": "NULL",
    "char * name": "drawn.name",
    "char * path": "drawn.name",
    "char * symbol": "drawn.name",
    "cuMemImportFromShareableHandle shared": "drawn.descriptor",
    "cuMemPoolImportFromShareableHandle shared": "drawn.descriptor",
    "cuuint64_t flags": "0",
    "float *": "&drawn.ms",
    "int priority": "0",
    "int version": "drawn.version",
    "size_t * failed": "&drawn.failed_index",
    "size_t * indices": "&drawn.zero",
    "size_t * pitch": "&drawn.got_pitch",
    "size_t * sizes": "drawn.sizes",
    "size_t * total": "&drawn.got_total",
    "size_t attribute_count": "1",
    "size_t location_count": "1",
    "size_t height": "drawn.height",
    "size_t pitch": "drawn.pitch",
    "size_t value": "drawn.amount",
    "size_t width": "drawn.width",
    "unsigned int element": "drawn.element",
    "unsigned int value": "drawn.value",
    "unsigned long long flags": "drawn.long_flags",
    "unsigned short value": "drawn.value",
    "unsigned char value": "drawn.value",
    "cuuint32_t value": "drawn.value",
    "cuuint64_t value": "drawn.value",
    "void * * function": "&drawn.function",
    "void * arg": "&drawn_called",
    "void * from": "drawn.host_from",
    "void * data": "drawn.room[2]",
    "void * host": "drawn.host_to",
    "void * to": "drawn.host_to",
}
STRUCTURES = {"CUipcMemHandle": "given.ipc", "CUmemLocation": "given.location"}  # handed on by value


class Row(NamedTuple):
    kind: str
    parameters: "list[tuple[str, str]]"  # type, name


def rows_of(hooks: Path, compiler: "list[str]") -> "dict[str, Row]":
    text = subprocess.run([*compiler, "-E", "-P", "-"], input=f'{MACROS}#include "{hooks}"\n', capture_output=True, text=True,
                          check=True).stdout
    rows = {}
    for kind, symbol, parameters in ROW.findall(text):
        words = [" ".join(p.replace("*", " * ").split()) for p in parameters.split(",") if p.strip() != "void"]
        rows[symbol] = Row(kind, [(re.sub(r"\w+$", "", p).strip(), re.findall(r"\w+$", p)[0]) for p in words])
    return rows


def expand(word: str) -> "list[str]":
    """Braces are as in a shell."""
    found = re.match(r"(.*?)\{([^{}]*)\}(.*)", word)
    return [e for part in found[2].split(",") for e in expand(found[1] + part + found[3])] if found else [word]


def expected_of(path: Path) -> "dict[str, str]":
    expected: "dict[str, str]" = {}
    symbols: "list[str]" = []
    for line in path.read_text().split("\n"):
        if not line or line[0] == "#":
            continue
        if not line[0].isspace():  # else the last line goes on
            pattern, line = line.split(None, 1)
            symbols = expand(pattern)
            twice = [symbol for symbol in symbols if symbol in expected]
            if twice:
                sys.exit(f"{path}: expected twice: {' '.join(twice)}")
        for symbol in symbols:
            expected[symbol] = f"{expected.get(symbol, '')} {line.strip()}".strip()
    return expected


def drawn(symbol: str, type_: str, name: str, index: int) -> str:
    """Of an argument in the differential fuzzer: an object of another call, a draw, or nothing."""
    plain = type_.replace("const ", "")
    for key in (f"{symbol} {name}", f"{plain} {name}", plain):
        if key in DRAWN or key in GIVEN:
            given = DRAWN.get(key) or GIVEN[key]
            return STRUCTURES.get(plain) or f"({type_})(uintptr_t)({given})"
    return STRUCTURES.get(plain) or f"({type_})(uintptr_t)({f'drawn.room[{index}]' if plain.endswith('*') else 0})"


def value(type_: str, name: str, index: int) -> str:
    """Of an argument: what effects look at, and else something that no other argument is."""
    plain = type_.replace("const ", "")
    if plain in STRUCTURES:
        return STRUCTURES[plain]
    given = GIVEN.get(f"{plain} {name}", GIVEN.get(plain))
    if not given:
        given = f"&given.room[{index}]" if plain.endswith("*") else f"0x{0x1000 + index:x}"
    return f"({type_})(uintptr_t)({given})"


def main() -> None:
    draw = sys.argv[1] == "--drawn"
    hooks, listed, out = (Path(word) for word in sys.argv[1 + draw:4 + draw])
    rows, expected = rows_of(hooks, sys.argv[4 + draw:]), expected_of(listed)
    lines = ["/* Made by rows.py. */", "/* clang-format off */"]
    for symbol, row in rows.items():
        parameters = ", ".join(f"{type_} {name}" for type_, name in row.parameters) or "void"
        given = [drawn(symbol, t, n, i) if draw else value(t, n, i) for i, (t, n) in enumerate(row.parameters)]
        values = " ".join(f"{type_} {name} = {word};" for (type_, name), word in zip(row.parameters, given))
        names = ", ".join(name for _, name in row.parameters)
        words = " ".join(f"ARGUMENT({name})" for _, name in row.parameters)
        effects = expected.pop(symbol, "").replace('"', '\\"')
        lines.append(f'{row.kind}_ROW({symbol}, ({parameters}), ({names}), "{effects}", {words}, {values})')
    lines += [f'MISSING_ROW({symbol})' for symbol in expected]
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
