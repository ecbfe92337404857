//! Every attribute of every supported operator: its default has no effect; another value is honoured (the predictions
//! change) or rejected by name. The external tests check against the `onnx` package that no attribute is missing here.

mod attributes;

use attributes::*;
use prost::Message;
use thalweg_core::{Batch, Features, Model as _, NoHooks, Rng, Targets, Task};
use thalweg_graph::onnx::OnnxModel;
use thalweg_graph::onnx::proto::{
    AttributeProto, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use thalweg_graph::{Input, Network, Options};

fn attribute(name: &str, value: AttributeValue) -> AttributeProto {
    let blank = AttributeProto { name: name.into(), ..AttributeProto::default() };
    match value {
        I(i) => AttributeProto { i, r#type: 2, ..blank },
        F(f) => AttributeProto { f, r#type: 1, ..blank },
        S(text) => AttributeProto { s: text.into(), r#type: 3, ..blank },
        Is(ints) => AttributeProto { ints: ints.to_vec(), r#type: 7, ..blank },
        Fs(floats) => AttributeProto { floats: floats.to_vec(), r#type: 6, ..blank },
        Ss(texts) => {
            let strings = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
            AttributeProto { strings, r#type: 8, ..blank }
        }
        T(number) => AttributeProto { t: Some(floats("", &[1], &[number])), r#type: 4, ..blank },
        UnexpectedType => AttributeProto { r#type: 11, ..blank },
    }
}

fn floats(name: &str, sizes: &[i64], values: &[f32]) -> TensorProto {
    let (dims, float_data) = (sizes.to_vec(), values.to_vec());
    TensorProto { name: name.into(), dims, data_type: 1, float_data, ..TensorProto::default() }
}

fn ints(name: &str, sizes: &[i64], values: &[i64]) -> TensorProto {
    let (dims, int64_data) = (sizes.to_vec(), values.to_vec());
    TensorProto { name: name.into(), dims, data_type: 7, int64_data, ..TensorProto::default() }
}

fn node(operator: &str, inputs: &[&str], output: &str, attributes: &[(&str, AttributeValue)]) -> NodeProto {
    NodeProto {
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: vec![output.into()],
        name: format!("/{output}"),
        op_type: operator.into(),
        attribute: attributes.iter().map(|(name, value)| attribute(name, *value)).collect(),
        domain: String::new(),
    }
}

fn value(name: &str, elem_type: i32, sizes: &[i64]) -> ValueInfoProto {
    let rows = Dimension { value: Some(DimensionValue::Param("rows".into())) };
    let sizes = sizes.iter().map(|size| Dimension { value: Some(DimensionValue::Size(*size)) });
    let shape = Some(TensorShapeProto { dim: std::iter::once(rows).chain(sizes).collect() });
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { tensor_type: Some(TensorTypeProto { elem_type, shape }) }),
    }
}

/// Initializers of the models below.
fn tensors() -> Vec<TensorProto> {
    let mut rng = Rng::keyed(5, "attributes", &[]);
    let mut drawn = |name: &str, sizes: &[i64]| {
        let len = sizes.iter().product::<i64>() as usize;
        floats(name, sizes, &(0..len).map(|_| rng.uniform() + 0.1).collect::<Vec<f32>>())
    };
    let mut all: Vec<TensorProto> = ["gain", "shift", "mean", "var"].map(|name| drawn(name, &[2])).into();
    all.extend([drawn("filters", &[4, 2, 2, 2]), drawn("thin", &[4, 1, 2, 2]), drawn("square", &[32, 32])]);
    all.extend([drawn("line", &[32]), drawn("four", &[4]), drawn("sheet", &[4, 4])]);
    for (name, gates) in [("LSTM", 4), ("GRU", 3), ("RNN", 1)] {
        all.push(drawn(&format!("{name}.w"), &[1, 2 * gates, 4]));
        all.push(drawn(&format!("{name}.r"), &[1, 2 * gates, 2]));
    }
    all.extend([floats("twice", &[4], &[1.0, 1.0, 2.0, 2.0]), floats("bits", &[2], &[0.0, 1.0])]);
    all.extend([ints("sequence", &[3], &[0, 8, 4]), ints("image", &[4], &[-1, 2, 4, 4])]);
    all.extend([ints("none", &[0], &[]), ints("first", &[1], &[1]), ints("ten", &[1], &[10])]);
    for number in [0, 1, 4, 7] {
        all.push(ints(&format!("i{number}"), &[], &[number]));
    }
    all.push(ints("channel", &[1], &[2]));
    all
}

/// A model around one node with these attributes; `tried` is the attribute under test.
fn model(operator: &str, tried: &str, attributes: &[(&str, AttributeValue)]) -> ModelProto {
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
    initializer.push(ints("four-wide", &[1], &[4]));
    if operator == "Trilu" {
        nodes.retain(|node| node.op_type != "Constant");
        initializer.push(ints("grid", &[4, 4], &[1; 16]));
        let place = nodes.iter().position(|node| node.op_type == "Add").unwrap();
        nodes[place].input[1] = "cast".into();
        nodes.insert(place, node("Cast", &["tried"], "cast", &[("to", I(1))]));
    }
    let input = match operator {
        "OneHot" => value("symbols", 7, &[5]),
        _ => value("x", 1, &[2, 4, 4]),
    };
    let graph = GraphProto {
        node: nodes,
        name: "tried".into(),
        initializer,
        input: vec![input],
        output: vec![value("output", 1, &[])],
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version }];
    ModelProto { ir_version: 9, graph: Some(graph), opset_import, ..ModelProto::default() }
}

/// Attributes that an operator requires in these models.
fn required(operator: &str, tried: &str) -> Vec<(&'static str, AttributeValue)> {
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

/// The imported network with the attribute at a value, or without it.
fn imported(
    operator: &'static str,
    tried: &'static str,
    value: Option<AttributeValue>,
) -> Result<Network, String> {
    let mut attributes = required(operator, tried);
    if let Some(value) = value {
        attributes.retain(|(name, _)| *name != tried);
        attributes.push((tried, value));
    }
    let bytes = model(operator, tried, &attributes).encode_to_vec();
    let source = OnnxModel::read(&bytes).map_err(|error| error.message)?;
    let network = match operator {
        "OneHot" => {
            let input = Input::Symbols { window: 5, vocabulary: 7 };
            source.network(input, 35, Task::Classification, Options::default())
        }
        _ => source.standalone_network(Options::default()),
    };
    network.map_err(|error| error.message)
}

/// The predictions of a network, and its gradient with the loss appended.
fn outputs(mut network: Network, operator: &str) -> (Vec<f32>, Vec<f32>) {
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
    let mut predictions = Vec::new();
    network.predict(&parameters, &batch, &mut predictions).unwrap();
    let mut gradient = vec![0.0; parameters.len()];
    let tally = network.gradient(&parameters, &batch, 0.5, &mut gradient, &mut NoHooks).unwrap();
    gradient.push(tally.loss as f32);
    (predictions, gradient)
}

#[test]
fn defaults_have_no_effect_and_other_values_are_honoured_or_rejected() {
    let mut failures = Vec::new();
    for &(operator, tried, default, other, outcome) in TABLE {
        let line = format!("{operator}.{tried} = {other:?}");
        let plain = imported(operator, tried, None);
        if let Some(default) = default {
            match (imported(operator, tried, Some(default)), &plain) {
                (Ok(network), Ok(plain))
                    if outputs(network.clone(), operator) == outputs(plain.clone(), operator) => {}
                (Err(one), Err(other)) if one == *other => {}
                (network, _) => {
                    failures.push(format!("{line}: the default has an effect: {:?}", network.err()))
                }
            }
        }
        match (imported(operator, tried, Some(other)), outcome) {
            (Err(message), Rejected) => {
                if !message.contains(tried) || !message.contains(operator) || !message.contains("/tried") {
                    failures.push(format!("{line}: rejected without its name: {message}"));
                }
            }
            (Ok(_), Rejected) => failures.push(format!("{line}: silently ignored")),
            (Err(message), _) => failures.push(format!("{line}: rejected: {message}")),
            (Ok(_), Accepted) => {}
            (Ok(network), Honoured | Trained) => {
                let Ok(plain) = plain else { continue };
                let (after, before) = (outputs(network, operator), outputs(plain, operator));
                let same = if outcome == Trained { after.1 == before.1 } else { after.0 == before.0 };
                if same {
                    failures.push(format!("{line}: has no effect"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn an_unknown_attribute_is_rejected() {
    for &(operator, ..) in TABLE.iter().filter(|line| !matches!(line.0, "Constant" | "Slice" | "Squeeze")) {
        let message = imported(operator, "made_up", Some(I(1))).unwrap_err();
        assert!(message.contains("`made_up` = 1 is not supported"), "{operator}: {message}");
    }
}

#[test]
fn an_attribute_of_another_type_is_rejected() {
    let message = imported("Flatten", "axis", Some(F(1.0))).unwrap_err();
    assert!(message.contains("attribute `axis` is not of the type"), "{message}");
}

#[test]
fn the_tables_name_every_operator_once() {
    let mut named: Vec<&str> = TABLE.iter().map(|line| line.0).collect();
    named.dedup();
    named.extend(WITHOUT_ATTRIBUTES);
    let count = named.len();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named.len(), count);
    assert_eq!(named, thalweg_graph::onnx::operators());
}
