"""ONNX graphs, written node by node, and the one file that holds the weights of all of them.

A value of a graph is known by its name; `Graph.op` adds a node and returns the name of what comes
out. Everything used here is in opset 17, which each runtime of the last years knows.
"""

import os
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.helper import make_tensor_value_info

from transduce.config import ModelConfig
from transduce.model import Transformer
from transduce.model_folder import weights

Value = str
"""The name of a value in a graph."""
Operand = Value | int | float | list[int] | npt.NDArray[Any]
"""What a node reads: a value, or a constant (int64 or float32 unless it is an array)."""
Shape = list[str | int]

OPSET, IR_VERSION = 17, 8
ALIGNMENT = 64
"""Tensors begin at multiples of so many bytes, as processors like to load them."""


class Weights:
    """The parameters of a model by name, and where each lies in the one file, float32.

    Tied matrices lie there once and are found under each of their names.
    """

    def __init__(self, model: Transformer, file: str) -> None:
        self.config: ModelConfig = model.config
        self.file = file
        self.tensors = {name: tensor.numpy() for name, tensor in weights(model).items()}
        first: dict[int, str] = {}
        self._first_name = {
            name: first.setdefault(id(parameter), name)
            for name, parameter in model.named_parameters(remove_duplicate=False)
        }
        self.used: set[str] = set()
        self._offsets: dict[str, int] = {}
        end = 0
        for name, tensor in self.tensors.items():
            self._offsets[name] = -(-end // ALIGNMENT) * ALIGNMENT
            end = self._offsets[name] + tensor.nbytes

    def __contains__(self, name: str) -> bool:
        return name in self._first_name

    def reference(self, name: str) -> TensorProto:
        """Return a tensor that says where the numbers are."""
        name = self._first_name[name]
        self.used.add(name)
        tensor = self.tensors[name]
        proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=tensor.shape)
        proto.data_location = TensorProto.EXTERNAL
        place = {"location": self.file, "offset": self._offsets[name], "length": tensor.nbytes}
        for key, value in place.items():
            proto.external_data.add(key=key, value=str(value))
        return proto

    def write(self, folder: Path) -> None:
        """Write the file."""
        with open(folder / self.file, "wb") as file:
            for name, tensor in self.tensors.items():
                file.write(b"\0" * (self._offsets[name] - file.tell()))
                file.write(tensor.astype("<f4", copy=False).data)
            file.flush()
            os.fsync(file.fileno())


class Graph:
    """A graph under construction, or the inner graph of a loop, which sees all of the outer one.

    Args:
        weights: the parameters that it may use.
        outer: the graph around it.
    """

    def __init__(self, weights: Weights, outer: "Graph | None" = None) -> None:
        self.weights = weights
        self._nodes: list[NodeProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._renamed: dict[Value, str] = {}
        # Weights and constants belong to the outermost graph, and names are distinct everywhere.
        self._initializers: dict[Value, TensorProto] = {} if outer is None else outer._initializers
        self._constants: dict[tuple[object, ...], Value] = {} if outer is None else outer._constants
        self._numbers: count[int] = count() if outer is None else outer._numbers

    @property
    def config(self) -> ModelConfig:
        """The sizes and switches of the model."""
        return self.weights.config

    def op(self, kind: str, *operands: Operand, **attributes: Any) -> Value:
        """Add a node and return its output."""
        return self.ops(kind, 1, *operands, **attributes)[0]

    def ops(self, kind: str, count: int, *operands: Operand, **attributes: Any) -> list[Value]:
        """Add a node and return so many outputs."""
        names = [self.fresh(kind) for _ in range(count)]
        inputs = [
            operand if isinstance(operand, str) else self._constant(operand) for operand in operands
        ]
        self._nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names

    def parameter(self, name: str) -> Value:
        """Return a weight of the model."""
        proto = self.weights.reference(name)
        self._initializers[proto.name] = proto
        return proto.name

    def input(self, name: str, type_: int, shape: Shape | None = None) -> Value:
        """Declare an input; axes are sizes or names."""
        self._inputs.append(make_tensor_value_info(name, type_, shape))
        return name

    def output(self, name: str, value: Value, type_: int, shape: Shape | None = None) -> None:
        """Declare an output: a value that no inner graph sees will have that name."""
        self._renamed[value] = name
        self._outputs.append(make_tensor_value_info(name, type_, shape))

    def fresh(self, word: str) -> Value:
        """Return a name that nothing has yet."""
        return f"{word}_{next(self._numbers)}"

    def loop(self, times: Value, body: "Graph", carried: list[Value]) -> list[Value]:
        """Repeat an inner graph at most `times` times, as long as its first output is true.

        Its inputs are the number of the round, a truth value and what is carried; its outputs a
        truth value, what is carried on, and what is collected round by round. The same comes out
        of the loop, but for the truth value.
        """
        outputs = [self.fresh("Loop") for _ in body._outputs[1:]]
        inputs = [times, self._constant(np.array(True)), *carried]
        name = self.fresh("Loop")
        node = helper.make_node("Loop", inputs, outputs, name=name, body=body._proto("body"))
        self._nodes.append(node)
        return outputs

    def model(self, name: str) -> ModelProto:
        """Return the finished graph."""
        proto = self._proto(name)
        proto.initializer.extend(self._initializers.values())
        return helper.make_model(
            proto,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="transduce",
        )

    def _proto(self, name: str) -> GraphProto:
        for node in self._nodes:  # a node that only gave another name would copy, at each step
            node.input[:] = [self._renamed.get(value, value) for value in node.input]
            node.output[:] = [self._renamed.get(value, value) for value in node.output]
        return helper.make_graph(self._nodes, name, self._inputs, self._outputs)

    def _constant(self, value: int | float | list[int] | npt.NDArray[Any]) -> Value:
        if not isinstance(value, np.ndarray):
            value = np.array(value, dtype=np.float32 if isinstance(value, float) else np.int64)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            name = self._constants[key] = self.fresh("constant")
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            self._initializers[name] = helper.make_tensor(
                name, kind, value.shape, value.tobytes(), raw=True
            )
        return self._constants[key]
