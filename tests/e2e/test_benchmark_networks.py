"""The networks of the benchmarks: the same bytes each time, and activations that neither vanish nor explode."""

import numpy as np
import onnx

import networks
from reference_sessions import reference_session


def test_a_network_is_the_same_each_time() -> None:
    first, second = (networks.mobilenet_v2().SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_layers_keep_the_spread_of_their_inputs() -> None:
    model = networks.mobilenet_v1()
    weighted = [node.output[0] for node in model.graph.node if node.op_type in ("Conv", "Gemm")]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in weighted)
    session = reference_session(model)
    values = session.run(weighted, {"input": networks.sample("mobilenet_v1", 0)})
    spreads = [float(np.std(np.asarray(value))) for value in values]
    assert len(spreads) == 28
    assert 0.3 < min(spreads) <= max(spreads) < 3


def test_samples_are_the_same_each_time_and_differ_from_each_other() -> None:
    first, again, other = (networks.sample("bert_base", number) for number in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
