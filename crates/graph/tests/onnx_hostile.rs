//! Hostile ONNX files (cycles, huge shapes, long chains): rejected by node name, in time and memory bounded by the file's
//! size.

use prost::Message;
use thalweg_core::{Result, Task};
use thalweg_graph::onnx::OnnxModel;
use thalweg_graph::onnx::proto::{
    AttributeProto, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use thalweg_graph::{Input, Network, Options};

fn node(operator: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: vec![output.into()],
        name: format!("/{output}"),
        op_type: operator.into(),
        attribute: Vec::new(),
        domain: String::new(),
    }
}

fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { name: name.into(), ints: values.to_vec(), r#type: 7, ..AttributeProto::default() }
}

fn floats(name: &str, sizes: &[i64], values: &[f32]) -> TensorProto {
    let (dims, float_data) = (sizes.to_vec(), values.to_vec());
    TensorProto { name: name.into(), dims, data_type: 1, float_data, ..TensorProto::default() }
}

fn value(name: &str, sizes: &[i64]) -> ValueInfoProto {
    let rows = Dimension { value: Some(DimensionValue::Param("rows".into())) };
    let sizes = sizes.iter().map(|size| Dimension { value: Some(DimensionValue::Size(*size)) });
    let shape = Some(TensorShapeProto { dim: std::iter::once(rows).chain(sizes).collect() });
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { tensor_type: Some(TensorTypeProto { elem_type: 1, shape }) }),
    }
}

fn network(
    node: Vec<NodeProto>,
    initializer: Vec<TensorProto>,
    input: Input,
    sizes: &[i64],
) -> Result<Network> {
    let (inputs, output) = (vec![value("x", sizes)], vec![value("y", &[])]);
    let graph = GraphProto { node, initializer, input: inputs, output, ..GraphProto::default() };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 17 }];
    let model = ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() };
    OnnxModel::read(&model.encode_to_vec())?.network(input, 4, Task::Classification, Options::default())
}

#[test]
fn cyclic_graphs_are_rejected() {
    let cycle =
        vec![node("Identity", &["b"], "a"), node("Identity", &["a"], "b"), node("Identity", &["a"], "y")];
    let error = network(cycle, Vec::new(), Input::Flat(4), &[4]).unwrap_err();
    assert!(error.message.contains("which is not defined"), "{error}");
    let self_loop = vec![node("Identity", &["y"], "y")];
    assert!(network(self_loop, Vec::new(), Input::Flat(4), &[4]).is_err());
}

#[test]
fn long_chains_are_fused_in_pieces() {
    let mut nodes = Vec::new();
    let mut before = "x".to_string();
    for number in 0..20_000 {
        let name = format!("n{number}");
        // A vector that several nodes read becomes one parameter per reader.
        let inputs: &[&str] = if number % 10 == 0 { &[&before, "bias"] } else { &[&before] };
        nodes.push(node(if inputs.len() == 2 { "Add" } else { "Relu" }, inputs, &name));
        before = name;
    }
    nodes.push(node("Identity", &[&before], "y"));
    let network = network(nodes, vec![floats("bias", &[4], &[0.1; 4])], Input::Flat(4), &[4]).unwrap();
    let operators = network.describe(1).operators;
    assert!(operators.len() > 20_000 / 64, "{} operators", operators.len());
    assert_eq!(thalweg_core::Model::layout(&network).len(), 4 * 2000);
}

#[test]
fn huge_results_are_rejected_by_node_name() {
    let image = (Input::Image([28, 28, 1]), &[1, 28, 28][..]);
    let filters = || vec![floats("w", &[8, 1, 3, 3], &[0.1; 72])];
    let padded = NodeProto { attribute: vec![ints("pads", &[1 << 20; 4])], ..node("Conv", &["x", "w"], "y") };
    let error = network(vec![padded], filters(), image.0, image.1).unwrap_err();
    assert!(error.message.contains("Conv (/y)"), "{error}");
    assert!(error.message.contains("more than a machine can hold"), "{error}");

    let mut nodes = Vec::new();
    let mut before = "x".to_string();
    for number in 0..6 {
        let name = format!("up{number}");
        nodes.push(node("Resize", &[&before, "", "scales"], &name));
        before = name;
    }
    nodes.push(node("Flatten", &[&before], "y"));
    let scales = floats("scales", &[4], &[1.0, 1.0, 64.0, 64.0]);
    let error = network(nodes, vec![scales], image.0, image.1).unwrap_err();
    assert!(error.message.contains("Resize (/up"), "{error}");
    assert!(error.message.contains("more than a machine can hold"), "{error}");
}

/// Layer normalisation as exporters decompose it: `minuend` minus the mean of x, squared with `factor`, divided.
fn decomposed_norm(minuend: &str, factor: &str) -> Result<Network> {
    let mean = |of: &str, output: &str| NodeProto {
        attribute: vec![ints("axes", &[-1])],
        ..node("ReduceMean", &[of], output)
    };
    let nodes = vec![
        node("Mul", &["x", "two"], "doubled"),
        node("Relu", &["x"], "other"),
        mean("x", "mean"),
        mean("other", "other-mean"),
        node("Sub", &["other", "other-mean"], "other-centered"),
        node("Sub", &[minuend, "mean"], "centered"),
        node("Mul", &["centered", factor], "squared"),
        mean("squared", "variance"),
        node("Add", &["variance", "epsilon"], "positive"),
        node("Sqrt", &["positive"], "deviation"),
        node("Div", &["centered", "deviation"], "y"),
    ];
    let numbers = vec![floats("two", &[], &[2.0]), floats("epsilon", &[], &[1e-5])];
    network(nodes, numbers, Input::Flat(4), &[4])
}

#[test]
fn a_normalisation_of_different_values_is_not_taken_for_layer_normalisation() {
    decomposed_norm("x", "centered").unwrap();
    for (minuend, factor) in [("doubled", "centered"), ("x", "other-centered")] {
        let error = decomposed_norm(minuend, factor).unwrap_err();
        assert!(error.message.contains("cannot be translated"), "{error}");
    }
}
