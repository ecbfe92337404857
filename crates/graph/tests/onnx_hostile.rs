//! ONNX files that claim too much or lead nowhere: refused by name, in time and memory that the file's size bounds.

use prost::Message;
use thalweg_core::{Result, Task};
use thalweg_graph::onnx::Source;
use thalweg_graph::onnx::proto::{
    Attribute, Dimension, Graph, Model, Node, OperatorSet, Size, Tensor, TensorShape, TensorType, Type,
    ValueInfo,
};
use thalweg_graph::{Input, Network, Options};

fn node(operator: &str, inputs: &[&str], output: &str) -> Node {
    Node {
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: vec![output.into()],
        name: format!("/{output}"),
        op_type: operator.into(),
        attribute: Vec::new(),
        domain: String::new(),
    }
}

fn ints(name: &str, values: &[i64]) -> Attribute {
    Attribute { name: name.into(), ints: values.to_vec(), r#type: 7, ..Attribute::default() }
}

fn floats(name: &str, sizes: &[i64], values: &[f32]) -> Tensor {
    let (dims, float_data) = (sizes.to_vec(), values.to_vec());
    Tensor { name: name.into(), dims, data_type: 1, float_data, ..Tensor::default() }
}

fn value(name: &str, sizes: &[i64]) -> ValueInfo {
    let rows = Dimension { value: Some(Size::Name("rows".into())) };
    let sizes = sizes.iter().map(|size| Dimension { value: Some(Size::Value(*size)) });
    let shape = Some(TensorShape { dim: std::iter::once(rows).chain(sizes).collect() });
    ValueInfo {
        name: name.into(),
        r#type: Some(Type { tensor_type: Some(TensorType { elem_type: 1, shape }) }),
    }
}

fn network(node: Vec<Node>, initializer: Vec<Tensor>, input: Input, sizes: &[i64]) -> Result<Network> {
    let (inputs, output) = (vec![value("x", sizes)], vec![value("y", &[])]);
    let graph = Graph { node, initializer, input: inputs, output, ..Graph::default() };
    let opset_import = vec![OperatorSet { domain: String::new(), version: 17 }];
    let model = Model { ir_version: 8, graph: Some(graph), opset_import, ..Model::default() };
    Source::read(&model.encode_to_vec())?.network(input, 4, Task::Classification, Options::default())
}

#[test]
fn nodes_that_pass_on_each_other_are_refused() {
    let circle =
        vec![node("Identity", &["b"], "a"), node("Identity", &["a"], "b"), node("Identity", &["a"], "y")];
    let error = network(circle, Vec::new(), Input::Flat(4), &[4]).unwrap_err();
    assert!(error.message.contains("which nothing gives"), "{error}");
    let itself = vec![node("Identity", &["y"], "y")];
    assert!(network(itself, Vec::new(), Input::Flat(4), &[4]).is_err());
}

#[test]
fn long_chains_are_fused_in_pieces() {
    let mut nodes = Vec::new();
    let mut before = "x".to_string();
    for number in 0..20_000 {
        let name = format!("n{number}");
        // Vectors that several nodes read are one parameter for each of them.
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
fn results_beyond_any_machine_are_refused_by_node() {
    let image = (Input::Image([28, 28, 1]), &[1, 28, 28][..]);
    let filters = || vec![floats("w", &[8, 1, 3, 3], &[0.1; 72])];
    let padded = Node { attribute: vec![ints("pads", &[1 << 20; 4])], ..node("Conv", &["x", "w"], "y") };
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
