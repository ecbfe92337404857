//! Every attribute of every operator that can be read: at its default it changes nothing, at another value it is
//! honoured (the answers change) or refused by name. That no attribute of the operator sets is missing here is held
//! against the `onnx` package by the external tests.

mod attributes;

use attributes::*;
use prost::Message;
use thalweg_core::{Batch, Features, Model as _, NoHooks, Rng, Targets, Task};
use thalweg_graph::onnx::Source;
use thalweg_graph::onnx::proto::{
    Attribute, Dimension, Graph, Model, Node, OperatorSet, Size, Tensor, TensorShape, TensorType, Type,
    ValueInfo,
};
use thalweg_graph::{Input, Network, Options};

fn attribute(name: &str, value: Value) -> Attribute {
    let blank = Attribute { name: name.into(), ..Attribute::default() };
    match value {
        I(i) => Attribute { i, r#type: 2, ..blank },
        F(f) => Attribute { f, r#type: 1, ..blank },
        S(text) => Attribute { s: text.into(), r#type: 3, ..blank },
        Is(ints) => Attribute { ints: ints.to_vec(), r#type: 7, ..blank },
        Fs(floats) => Attribute { floats: floats.to_vec(), r#type: 6, ..blank },
        Ss(texts) => {
            let strings = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
            Attribute { strings, r#type: 8, ..blank }
        }
        T(number) => Attribute { t: Some(floats("", &[1], &[number])), r#type: 4, ..blank },
        Strange => Attribute { r#type: 11, ..blank },
    }
}

fn floats(name: &str, sizes: &[i64], values: &[f32]) -> Tensor {
    let (dims, float_data) = (sizes.to_vec(), values.to_vec());
    Tensor { name: name.into(), dims, data_type: 1, float_data, ..Tensor::default() }
}

fn wholes(name: &str, sizes: &[i64], values: &[i64]) -> Tensor {
    let (dims, int64_data) = (sizes.to_vec(), values.to_vec());
    Tensor { name: name.into(), dims, data_type: 7, int64_data, ..Tensor::default() }
}

fn node(operator: &str, inputs: &[&str], output: &str, attributes: &[(&str, Value)]) -> Node {
    Node {
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: vec![output.into()],
        name: format!("/{output}"),
        op_type: operator.into(),
        attribute: attributes.iter().map(|(name, value)| attribute(name, *value)).collect(),
        domain: String::new(),
    }
}

fn value(name: &str, elem_type: i32, sizes: &[i64]) -> ValueInfo {
    let rows = Dimension { value: Some(Size::Name("rows".into())) };
    let sizes = sizes.iter().map(|size| Dimension { value: Some(Size::Value(*size)) });
    let shape = Some(TensorShape { dim: std::iter::once(rows).chain(sizes).collect() });
    ValueInfo { name: name.into(), r#type: Some(Type { tensor_type: Some(TensorType { elem_type, shape }) }) }
}

/// Tensors that the nodes below read.
fn tensors() -> Vec<Tensor> {
    let mut rng = Rng::keyed(5, "attributes", &[]);
    let mut drawn = |name: &str, sizes: &[i64]| {
        let len = sizes.iter().product::<i64>() as usize;
        floats(name, sizes, &(0..len).map(|_| rng.uniform() + 0.1).collect::<Vec<f32>>())
    };
    let mut all: Vec<Tensor> = ["gain", "shift", "mean", "var"].map(|name| drawn(name, &[2])).into();
    all.extend([drawn("filters", &[4, 2, 2, 2]), drawn("thin", &[4, 1, 2, 2]), drawn("square", &[32, 32])]);
    all.extend([drawn("line", &[32]), drawn("four", &[4]), drawn("sheet", &[4, 4])]);
    for (name, gates) in [("LSTM", 4), ("GRU", 3), ("RNN", 1)] {
        all.push(drawn(&format!("{name}.w"), &[1, 2 * gates, 4]));
        all.push(drawn(&format!("{name}.r"), &[1, 2 * gates, 2]));
    }
    all.extend([floats("twice", &[4], &[1.0, 1.0, 2.0, 2.0]), floats("bits", &[2], &[0.0, 1.0])]);
    all.extend([wholes("sequence", &[3], &[0, 8, 4]), wholes("image", &[4], &[-1, 2, 4, 4])]);
    all.extend([wholes("none", &[0], &[]), wholes("first", &[1], &[1]), wholes("ten", &[1], &[10])]);
    for number in [0, 1, 4, 7] {
        all.push(wholes(&format!("i{number}"), &[], &[number]));
    }
    all.push(wholes("channel", &[1], &[2]));
    all
}

/// A model around one node with these attributes, and the attribute that is tried.
fn model(operator: &str, tried: &str, attributes: &[(&str, Value)]) -> Model {
    let own = |inputs: &[&str]| vec![node(operator, inputs, "tried", attributes)];
    let mut version = 28;
    let mut nodes = match operator {
        "AveragePool" | "MaxPool" | "Cast" | "Elu" | "Flatten" | "Gelu" | "LeakyRelu" | "Softmax"
        | "Transpose" => own(&["x"]),
        "BatchNormalization" => own(&["x", "gain", "shift", "mean", "var"]),
        "Concat" => own(&["x", "x"]),
        "Constant" if matches!(tried, "value_int" | "value_ints") => {
            [own(&[]), vec![node("Gather", &["x", "tried"], "taken", &[("axis", I(1))])]].concat()
        }
        "Constant" => [own(&[]), vec![node("Mul", &["x", "tried"], "product", &[])]].concat(),
        "ConstantOfShape" => {
            [own(&["four-wide"]), vec![node("Mul", &["x", "tried"], "product", &[])]].concat()
        }
        "Conv" if attributes.iter().any(|(name, value)| *name == "group" && matches!(value, I(2))) => {
            own(&["x", "thin"])
        }
        "Conv" => own(&["x", "filters"]),
        "Dropout" => {
            version = if tried == "ratio" { 11 } else { 28 };
            own(&["x"])
        }
        "GRU" | "LSTM" | "RNN" => {
            let weights = [format!("{operator}.w"), format!("{operator}.r")];
            let before = vec![
                node("Reshape", &["x", "sequence"], "lines", &[]),
                node("Transpose", &["lines"], "turned", &[("perm", Is(&[1, 0, 2]))]),
            ];
            let behind = vec![
                node("Squeeze", &["tried", "first"], "alone", &[]),
                node("Transpose", &["alone"], "back", &[("perm", Is(&[1, 0, 2]))]),
            ];
            [before, own(&["turned", &weights[0], &weights[1]]), behind].concat()
        }
        "Gather" => own(&["x", "i1"]),
        "Gemm" => [vec![node("Flatten", &["x"], "flat", &[])], own(&["flat", "square", "line"])].concat(),
        "LayerNormalization" => {
            let two = attributes.iter().any(|(name, value)| *name == "axis" && matches!(value, I(2)));
            own(&["x", if two { "sheet" } else { "four" }])
        }
        "LogSoftmax" => [vec![node("Flatten", &["x"], "flat", &[])], own(&["flat"])].concat(),
        "Mod" | "Range" => {
            let inputs: &[&str] = if operator == "Mod" { &["i7", "i4"] } else { &["i0", "i4", "i1"] };
            let behind = vec![
                node("Cast", &["tried"], "cast", &[("to", I(1))]),
                node("Add", &["x", "cast"], "sum", &[]),
            ];
            [own(inputs), behind].concat()
        }
        "OneHot" => own(&["symbols", "i7", "bits"]),
        "ReduceMean" if tried == "noop_with_empty_axes" => own(&["x", "none"]),
        "ReduceMean" => {
            version = if tried == "axes" { 13 } else { 28 };
            own(if tried == "axes" { &["x"] } else { &["x", "first"] })
        }
        "ReduceProd" => {
            version = if tried == "axes" { 13 } else { 28 };
            let behind = vec![
                node("Cast", &["tried"], "cast", &[("to", I(1))]),
                node("Mul", &["x", "cast"], "sum", &[]),
            ];
            [own(&["channel"]), behind].concat()
        }
        "Reshape" => own(&["x", "image"]),
        "Resize" => own(&["x", "", "twice"]),
        "Upsample" => {
            version = 9;
            own(&["x", "twice"])
        }
        "Shape" => {
            let behind = vec![
                node("ReduceProd", &["sizes"], "product", &[]),
                node("Cast", &["product"], "cast", &[("to", I(1))]),
                node("Mul", &["x", "cast"], "sum", &[]),
            ];
            let own = vec![node(operator, &["filters"], "sizes", attributes)];
            let learned = vec![node("Conv", &["x", "filters"], "unused", &[])];
            [learned, own, behind].concat()
        }
        "Slice" => {
            version = 9;
            own(&["x"])
        }
        "Split" => {
            version = if tried == "split" { 11 } else { 28 };
            let mut nodes = own(&["x"]);
            nodes[0].output.push("rest".into());
            nodes
        }
        "Squeeze" => {
            version = 11;
            [vec![node("ReduceMean", &["x"], "thin-x", &[("axes", Is(&[1]))])], own(&["thin-x"])].concat()
        }
        "Unsqueeze" => {
            version = 11;
            own(&["x"])
        }
        "Trilu" => {
            let behind = vec![node("Add", &["x", "tried"], "sum", &[])];
            [
                vec![node("Constant", &[], "matrix", &[("value_floats", Fs(&[0.5; 4]))])],
                own(&["grid"]),
                behind,
            ]
            .concat()
        }
        other => panic!("no model for {other}"),
    };
    let last = nodes.last().unwrap().output[0].clone();
    if operator == "LogSoftmax" {
        nodes.push(node("Identity", &[&last], "output", &[]));
    } else {
        nodes.push(node("Flatten", &[&last], "output", &[]));
    }
    let mut initializer = tensors();
    initializer.push(wholes("four-wide", &[1], &[4]));
    if operator == "Trilu" {
        nodes.retain(|node| node.op_type != "Constant");
        initializer.push(wholes("grid", &[4, 4], &[1; 16]));
        let place = nodes.iter().position(|node| node.op_type == "Add").unwrap();
        nodes[place].input[1] = "cast".into();
        nodes.insert(place, node("Cast", &["tried"], "cast", &[("to", I(1))]));
    }
    let input = match operator {
        "OneHot" => value("symbols", 7, &[5]),
        _ => value("x", 1, &[2, 4, 4]),
    };
    let graph = Graph {
        node: nodes,
        name: "tried".into(),
        initializer,
        input: vec![input],
        output: vec![value("output", 1, &[])],
    };
    let opset_import = vec![OperatorSet { domain: String::new(), version }];
    Model { ir_version: 9, graph: Some(graph), opset_import, ..Model::default() }
}

/// Attributes that an operator needs in these models.
fn needed(operator: &str, tried: &str) -> Vec<(&'static str, Value)> {
    match (operator, tried) {
        ("AveragePool", "count_include_pad") => {
            vec![("kernel_shape", Is(&[2, 2])), ("pads", Is(&[1, 1, 1, 1]))]
        }
        ("AveragePool" | "MaxPool", _) => vec![("kernel_shape", Is(&[2, 2]))],
        ("Cast", _) => vec![("to", I(1))],
        ("Split", "split") => vec![("axis", I(2))],
        ("Concat" | "Split", _) => vec![("axis", I(1))],
        ("Constant", "value_int") => vec![("value_int", I(0))],
        ("Constant", "value_ints") => vec![("value_ints", Is(&[0]))],
        ("Constant", "value") => vec![("value", T(0.25))],
        ("Constant", "value_float") => vec![("value_float", F(0.25))],
        ("Constant", "value_floats") => vec![("value_floats", Fs(&[0.25]))],
        ("GRU", _) => vec![("linear_before_reset", I(1))],
        ("Gather", _) => vec![("axis", I(1))],
        ("ReduceMean", "axes") => vec![("axes", Is(&[1]))],
        ("Slice", _) => vec![("starts", Is(&[0])), ("ends", Is(&[2])), ("axes", Is(&[2]))],
        ("Transpose", _) => vec![("perm", Is(&[0, 1, 2, 3]))],
        ("Unsqueeze", _) => vec![("axes", Is(&[1]))],
        _ => vec![],
    }
}

/// The network of such a model with the attribute at a value, or without it.
fn imported(operator: &'static str, tried: &'static str, value: Option<Value>) -> Result<Network, String> {
    let mut attributes = needed(operator, tried);
    if let Some(value) = value {
        attributes.retain(|(name, _)| *name != tried);
        attributes.push((tried, value));
    }
    let bytes = model(operator, tried, &attributes).encode_to_vec();
    let source = Source::read(&bytes).map_err(|error| error.message)?;
    let network = match operator {
        "OneHot" => {
            let input = Input::Symbols { window: 5, vocabulary: 7 };
            source.network(input, 35, Task::Classification, Options::default())
        }
        _ => source.by_itself(Options::default()),
    };
    network.map_err(|error| error.message)
}

/// What a network answers, and its parameters after a step.
fn answers(mut network: Network, operator: &str) -> (Vec<f32>, Vec<f32>) {
    let mut rng = Rng::keyed(8, "rows", &[]);
    let width = if operator == "OneHot" { 35 } else { 32 };
    let features = match operator {
        "OneHot" => {
            Features::Tokens { symbols: vec![0, 6, 2, 3, 4, 5, 5, 1, 0, 2], window: 5, vocabulary: 7 }
        }
        _ => Features::Dense((0..2 * width).map(|_| 4.0 * rng.uniform() - 2.0).collect()),
    };
    let batch = Batch { epoch: 0, rows: vec![0, 1], width, features, targets: Targets::Classes(vec![0, 1]) };
    let mut parameters = vec![0.0; network.layout().len()];
    network.initialize(3, &mut parameters);
    let mut answers = Vec::new();
    network.predict(&parameters, &batch, &mut answers).unwrap();
    let mut gradient = vec![0.0; parameters.len()];
    let tally = network.gradient(&parameters, &batch, 0.5, &mut gradient, &mut NoHooks).unwrap();
    gradient.push(tally.loss as f32);
    (answers, gradient)
}

#[test]
fn defaults_change_nothing_and_other_values_are_honoured_or_refused() {
    let mut wrong = Vec::new();
    for &(operator, tried, usual, other, fate) in TABLE {
        let line = format!("{operator}.{tried} = {other:?}");
        let plain = imported(operator, tried, None);
        if let Some(usual) = usual {
            match (imported(operator, tried, Some(usual)), &plain) {
                (Ok(network), Ok(plain))
                    if answers(network.clone(), operator) == answers(plain.clone(), operator) => {}
                (Err(one), Err(other)) if one == *other => {}
                (network, _) => {
                    wrong.push(format!("{line}: the default changes something: {:?}", network.err()))
                }
            }
        }
        match (imported(operator, tried, Some(other)), fate) {
            (Err(message), Refused) => {
                if !message.contains(tried) || !message.contains(operator) || !message.contains("/tried") {
                    wrong.push(format!("{line}: refused without its name: {message}"));
                }
            }
            (Ok(_), Refused) => wrong.push(format!("{line}: passed over in silence")),
            (Err(message), _) => wrong.push(format!("{line}: refused: {message}")),
            (Ok(_), Accepted) => {}
            (Ok(network), Honoured | Trained) => {
                let Ok(plain) = plain else { continue };
                let (after, before) = (answers(network, operator), answers(plain, operator));
                let same = if fate == Trained { after.1 == before.1 } else { after.0 == before.0 };
                if same {
                    wrong.push(format!("{line}: changes nothing"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_attribute_that_no_operator_has_is_refused() {
    for &(operator, ..) in TABLE.iter().filter(|line| !matches!(line.0, "Constant" | "Slice" | "Squeeze")) {
        let message = imported(operator, "made_up", Some(I(1))).unwrap_err();
        assert!(message.contains("`made_up` = 1 is not supported"), "{operator}: {message}");
    }
}

#[test]
fn an_attribute_of_another_type_is_refused() {
    let message = imported("Flatten", "axis", Some(F(1.0))).unwrap_err();
    assert!(message.contains("attribute `axis` is not of the type"), "{message}");
}

#[test]
fn the_tables_name_every_operator_once() {
    let mut named: Vec<&str> = TABLE.iter().map(|line| line.0).collect();
    named.dedup();
    named.extend(PLAIN);
    let count = named.len();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named.len(), count);
    assert_eq!(named, thalweg_graph::onnx::operators());
}
