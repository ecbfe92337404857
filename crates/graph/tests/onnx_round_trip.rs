//! An exported network imports as the same network; damaged files are rejected without a panic.

use proptest::prelude::*;
use prost::Message;
use std::collections::BTreeMap;
use std::path::Path;
use thalweg_core::schema::{RowShape, Scaling, Schema, TargetScaling};
use thalweg_core::spec::ensemble::Combine;
use thalweg_core::{Batch, Features, Layout, Model, Rng, Targets, Task};
use thalweg_graph::onnx::{OnnxModel, export, export_ensemble, proto};
use thalweg_graph::{Ensemble, Input, Network, Options, zoo};

const FLAT: Input = Input::Flat(7);
const IMAGE: Input = Input::Image([8, 12, 2]);
const TEXT: Input = Input::Symbols { window: 6, vocabulary: 9 };
const OUTPUTS: usize = 9;

fn schema(input: Input, reconstruct: bool) -> Schema {
    let shape = match input {
        Input::Flat(columns) => RowShape::Sparse { columns, first: 0 },
        Input::Image(sizes) => RowShape::Image { sizes: sizes.to_vec() },
        Input::Symbols { window, vocabulary } => {
            RowShape::Text { window, alphabet: ('a'..).take(vocabulary).collect() }
        }
    };
    Schema {
        shape,
        task: Task::Classification,
        label: None,
        classes: (0..OUTPUTS).map(|class| class.to_string()).collect(),
        scaling: Scaling::default(),
        target: TargetScaling { shift: 0.0, factor: 1.0 },
        reconstruct,
        source_columns: Vec::new(),
    }
}

fn batch(input: Input) -> Batch {
    let mut rng = Rng::keyed(5, "round trip", &[]);
    let features = match input {
        Input::Symbols { window, vocabulary } => Features::Tokens {
            symbols: (0..3 * window).map(|_| rng.below(vocabulary as u64) as u32).collect(),
            window,
            vocabulary,
        },
        input => Features::Dense((0..3 * input.width()).map(|_| rng.uniform() - 0.5).collect()),
    };
    let targets = Targets::Classes(vec![0, 1, 2]);
    Batch { epoch: 0, rows: vec![0, 1, 2], width: input.width(), features, targets }
}

/// Names, shapes and roles in order.
fn tensors_of(layout: &Layout) -> Vec<String> {
    let tensor = |tensor: &thalweg_core::model::TensorInfo| {
        format!("{} {:?} {:?}", tensor.name, tensor.shape, tensor.role)
    };
    layout.tensors().iter().map(tensor).collect()
}

fn check(name: &str, mut network: Network, input: Input, reconstruct: bool) {
    let mut parameters = vec![0.0; network.layout().len()];
    network.initialize(3, &mut parameters);
    // Makes statistics and biases differ from each other.
    let mut rng = Rng::keyed(9, "noise", &[]);
    parameters.iter_mut().for_each(|value| *value += 0.1 * rng.uniform());
    let schema = schema(input, reconstruct);
    let bytes = export(&network, &parameters, &schema, vec![]).unwrap();
    let source = OnnxModel::read(&bytes).unwrap();
    let mut again =
        source.for_schema(&schema, Options::default()).unwrap_or_else(|e| panic!("{name}: {}", e.message));
    assert_eq!(tensors_of(again.layout()), tensors_of(network.layout()), "{name}");
    let mut imported = vec![0.0; again.layout().len()];
    again.initialize(99, &mut imported);
    let predict = |network: &mut Network, parameters: &[f32]| {
        let mut predictions = Vec::new();
        network.predict(parameters, &batch(input), &mut predictions).unwrap();
        predictions
    };
    let (before, after) = (predict(&mut network, &parameters), predict(&mut again, &imported));
    let off = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(before.len() == after.len() && off < 1e-5, "{name}: off by {off}");
    // The structure with the weights restored is the same network.
    let structure = source.structure(&schema, Options::default()).unwrap();
    assert!(structure.len() < bytes.len() / 2 + 4096, "{name}: {} of {}", structure.len(), bytes.len());
    let mut from_structure =
        OnnxModel::read_structure(&structure).unwrap().for_schema(&schema, Options::default()).unwrap();
    assert_eq!(from_structure.layout(), again.layout());
    assert_eq!(predict(&mut from_structure, &imported), after, "{name}");
}

#[test]
fn every_network_of_the_zoo_round_trips() {
    for (name, input) in [
        ("mlp", IMAGE),
        ("resnet-small", IMAGE),
        ("autoencoder", IMAGE),
        ("autoencoder-conv", IMAGE),
        ("autoencoder-conv", Input::Image([8, 8, 1])),
        ("lenet", Input::Image([28, 28, 1])),
        ("char-lstm", TEXT),
        ("gpt-mini", TEXT),
        ("mlp", TEXT),
    ] {
        let network = zoo::network(name, input, OUTPUTS, Task::Classification, Options::default()).unwrap();
        check(name, network, input, name.starts_with("auto"));
    }
}

#[test]
fn every_layer_round_trips() {
    let lists: [(Input, &[&str]); 13] = [
        (Input::Flat(64), &["reshape 8x8x1", "conv 5 3x3 relu", "dense auto"]),
        (Input::Flat(48), &["reshape 4x4x3", "conv 5 3x3 relu", "flatten", "dense 7 relu", "dense auto"]),
        (Input::Flat(48), &["reshape 8x6", "lstm 5", "last", "dense auto"]),
        (IMAGE, &["reshape 12x8x2", "conv 5 3x3 relu", "dense auto"]),
        (IMAGE, &["reshape 8x24", "gru 5", "last", "dense auto"]),
        (IMAGE, &["conv 6 3x2 stride 2 pad 1 dilation 2 elu", "pool max 3 stride 2 pad 1", "dense auto"]),
        (IMAGE, &["conv 4 3 groups 2 leaky-relu", "pool mean 2", "batchnorm", "gelu", "dense auto"]),
        (
            IMAGE,
            &[
                "concat conv 3 1x1 | conv 2 3x3 pad 1 & tanh",
                "residual conv 7 3x3 pad 1 stride 2",
                "pool global",
                "dense auto",
            ],
        ),
        (
            IMAGE,
            &["upsample 2", "conv 3 5x5 sigmoid", "flatten", "dense 8 gelu-erf", "batchnorm", "dense auto"],
        ),
        (TEXT, &["embedding 8", "gru 10", "last", "dense auto"]),
        (
            TEXT,
            &[
                "embedding 8 positions",
                "rnn 6",
                "batchnorm",
                "transpose",
                "softmax",
                "transpose",
                "dense auto",
            ],
        ),
        (TEXT, &["embedding 8", "residual layernorm | attention 2", "concat dense 3 | gelu", "dense auto"]),
        (TEXT, &["lstm 7", "flatten", "dense auto"]),
    ];
    for (input, layers) in lists {
        let layers: Vec<String> = layers.iter().map(|layer| layer.to_string()).collect();
        let network = Network::build_for(&layers, input, OUTPUTS, Task::Classification).unwrap();
        check(&layers.join(", "), network, input, false);
    }
}

/// As an ONNX graph the mean of the members' probabilities is the input of a softmax like any other value.
#[test]
fn an_exported_ensemble_holds_its_members_and_predicts_their_mean() {
    let layers = ["conv 4 3 relu", "pool max 2", "dense 7 tanh", "dense auto"].map(String::from);
    let network = Network::build_for(&layers, IMAGE, OUTPUTS, Task::Classification).unwrap();
    let mut parameters = vec![0.0; 3 * network.layout().len()];
    let members = parameters.chunks_exact_mut(network.layout().len());
    members.zip(1..).for_each(|(member, seed)| network.initialize(seed, member));
    let schema = schema(IMAGE, false);
    let written = |combine| {
        let bytes = export_ensemble(&network, &parameters, combine, &schema, vec![]).unwrap();
        proto::ModelProto::decode(bytes.as_slice()).unwrap()
    };
    let mut model = written(Combine::Average);
    let error = OnnxModel::read(&model.encode_to_vec()).unwrap_err();
    assert!(error.message.contains("an ensemble of 3 models"), "{error}");
    let names: Vec<&str> =
        model.graph.iter().flat_map(|graph| &graph.initializer).map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names.iter().filter(|name| name.starts_with("members.2.layers.")).count(), 6, "{names:?}");
    model.metadata_props.clear();
    let source = OnnxModel::read(&model.encode_to_vec()).unwrap();
    let mut again = source.for_schema(&schema, Options::default()).unwrap();
    let mut imported = vec![0.0; again.layout().len()];
    again.initialize(99, &mut imported);
    let (mut mean, mut softmax) = (Vec::new(), Vec::new());
    let mut ensemble = Ensemble::new(Box::new(network.clone()), Combine::Average, network.loss(), OUTPUTS);
    ensemble.predict(&parameters, &batch(IMAGE), &mut mean).unwrap();
    again.predict(&imported, &batch(IMAGE), &mut softmax).unwrap();
    for (mean, softmax) in mean.chunks_exact(OUTPUTS).zip(softmax.chunks_exact(OUTPUTS)) {
        let sum: f32 = mean.iter().map(|value| value.exp()).sum();
        mean.iter().zip(softmax).for_each(|(mean, got)| assert!((mean.exp() / sum - got).abs() < 1e-6));
    }
    let graph = written(Combine::Vote).graph.unwrap();
    let votes = graph.node.iter().filter(|node| node.op_type == "ArgMax").count();
    assert_eq!((votes, graph.output[0].name.as_str()), (3, "probabilities"));
}

/// The operators behind the members, calculated here on the members' predictions.
#[test]
fn an_exported_stack_predicts_by_the_learned_combination() {
    let layers = ["dense 7 tanh", "dense auto"].map(String::from);
    let network = Network::build_for(&layers, FLAT, OUTPUTS, Task::Classification).unwrap();
    let length = network.layout().len();
    let mut parameters = vec![0.0; 3 * length];
    parameters.chunks_exact_mut(length).zip(1..).for_each(|(member, seed)| network.initialize(seed, member));
    let rows = batch(FLAT);
    let each: Vec<Vec<f32>> = parameters
        .chunks_exact(length)
        .map(|member| {
            let mut outputs = Vec::new();
            network.clone().predict(member, &rows, &mut outputs).unwrap();
            outputs
        })
        .collect();
    parameters.extend([0.7, -0.2, 0.4]);
    parameters.extend((0..OUTPUTS).map(|index| index as f32 / 10.0));
    let mut together = Vec::new();
    let mut ensemble = Ensemble::new(Box::new(network.clone()), Combine::Stack, network.loss(), OUTPUTS);
    ensemble.predict(&parameters, &rows, &mut together).unwrap();
    let bytes = export_ensemble(&network, &parameters, Combine::Stack, &schema(FLAT, false), vec![]).unwrap();
    assert!(OnnxModel::read(&bytes).unwrap_err().message.contains("an ensemble of 3 models"));
    let graph = proto::ModelProto::decode(bytes.as_slice()).unwrap().graph.unwrap();
    let first = graph.node.iter().position(|node| node.op_type == "Max").unwrap();
    let constant = |node: &proto::NodeProto| {
        let raw = &node.attribute[0].t.as_ref()?.raw_data;
        let floats = raw.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four));
        Some((node.output[0].clone(), floats.collect::<Vec<f32>>()))
    };
    let constants = graph.node.iter().filter(|node| node.op_type == "Constant");
    let mut values: BTreeMap<String, Vec<f32>> = constants.filter_map(constant).collect();
    let probabilities = graph.node[..first].iter().filter(|node| node.op_type == "Softmax");
    values.extend(probabilities.map(|node| node.output[0].clone()).zip(each));
    for node in graph.node[first..].iter().filter(|node| node.op_type != "Constant") {
        let one = values[&node.input[0]].clone();
        let other = node.input.get(1).map(|name| values[name].clone());
        let with = |apply: fn(f32, f32) -> f32| -> Vec<f32> {
            let other = other.iter().flatten().copied().collect::<Vec<f32>>();
            one.iter().zip(other.iter().cycle()).map(|(one, other)| apply(*one, *other)).collect()
        };
        let value = match node.op_type.as_str() {
            "Max" => with(f32::max),
            "Mul" => with(|one, other| one * other),
            "Add" => with(|one, other| one + other),
            "Log" => one.iter().map(|value| value.ln()).collect(),
            "Softmax" => one.chunks_exact(OUTPUTS).flat_map(softmax).collect(),
            "Identity" => one,
            other => panic!("{other} behind the members"),
        };
        values.insert(node.output[0].clone(), value);
    }
    let worst = values["probabilities"].iter().zip(&together).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(values["probabilities"].len() == together.len() && worst < 1e-6, "{worst}");
}

fn softmax(scores: &[f32]) -> Vec<f32> {
    let sum: f32 = scores.iter().map(|score| score.exp()).sum();
    scores.iter().map(|score| score.exp() / sum).collect()
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx").join(name)).unwrap()
}

fn import_error(bytes: &[u8], input: Input) -> String {
    let read = |source: OnnxModel| source.network(input, 3, Task::Classification, Options::default());
    OnnxModel::read(bytes).and_then(read).unwrap_err().message
}

#[test]
fn unsupported_operators_are_listed_in_one_error() {
    let text = import_error(&file("foreign.onnx"), Input::Flat(4));
    assert!(text.starts_with("model.onnx: 3 nodes of operators that are not supported:"), "{text}");
    for expected in ["Cos (/Cos)", "Clip (/Clip)", "CumSum (/CumSum)"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn a_shape_mismatch_names_expected_and_actual() {
    let text = import_error(&file("mlp-ts.onnx"), Input::Flat(9));
    assert_eq!(text, "model.onnx: input `input`: the file expects rows x 7, the data has rows of 9 numbers");
    let text = import_error(&file("convolutions-ts.onnx"), Input::Image([28, 28, 1]));
    assert!(text.contains("rows x 1 x 8 x 8") && text.contains("images of 1 x 28 x 28"), "{text}");
    let text = import_error(&file("lstm-ts.onnx"), Input::Symbols { window: 5, vocabulary: 40 });
    assert!(text.contains("`table.weight` has vectors for 11 symbols, but the data has 40"), "{text}");
    let text = import_error(&file("convolutions-ts.onnx"), Input::Image([8, 8, 1]));
    assert!(text.contains("expected 3 numbers (the data has 3 classes), got 10"), "{text}");
}

/// A file with its graph modified.
fn modified(name: &str, change: impl Fn(&mut proto::GraphProto)) -> Vec<u8> {
    let mut model = proto::ModelProto::decode(file(name).as_slice()).unwrap();
    change(model.graph.as_mut().unwrap());
    model.encode_to_vec()
}

#[test]
fn inconsistent_files_are_rejected() {
    let error = |change: &dyn Fn(&mut proto::GraphProto)| {
        import_error(&modified("mlp-ts.onnx", change), Input::Flat(7))
    };
    let text = error(&|graph| graph.initializer[0].dims = vec![1 << 40, 1 << 40]);
    assert!(text.contains("more than a machine can hold"), "{text}");
    let text = error(&|graph| graph.initializer[0].dims = vec![5, 8]);
    assert!(text.contains("its shape [5, 8] has 40 elements, but it holds 35"), "{text}");
    let text = error(&|graph| graph.initializer[0].dims = vec![-1, 35]);
    assert!(text.contains("size -1 is invalid"), "{text}");
    let text = error(&|graph| graph.initializer[0].data_location = 1);
    assert!(text.contains("in an external file"), "{text}");
    let text = error(&|graph| graph.node[0].input[0] = "missing".into());
    assert!(text.contains("reads `missing`, which is not defined"), "{text}");
    let text = error(&|graph| graph.initializer[0].dims = vec![7, 5]);
    assert!(text.contains("`0.weight`: expected a last axis of size 5, got 7"), "{text}");
    assert!(import_error(&[], Input::Flat(7)).contains("the file is empty"));
    assert!(import_error(&[8, 9], Input::Flat(7)).contains("it has no graph"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]

    /// A truncated file, flipped bytes, or both: an error or a network, never a panic.
    #[test]
    fn damaged_files_do_not_panic(
        which in 0usize..6,
        cut in 0.0f64..1.3,
        flips in proptest::collection::vec((0.0f64..1.0, any::<u8>()), 0..6),
    ) {
        let (name, input) = [
            ("convolutions-ts.onnx", Input::Image([8, 8, 1])),
            ("branches-dyn.onnx", Input::Image([8, 6, 2])),
            ("activations-ts.onnx", Input::Flat(6)),
            ("transformer-dyn.onnx", Input::Symbols { window: 5, vocabulary: 11 }),
            ("gru-ts.onnx", Input::Symbols { window: 5, vocabulary: 11 }),
            ("encoder-ts.onnx", Input::Symbols { window: 5, vocabulary: 11 }),
        ][which];
        let mut bytes = file(name);
        for (place, byte) in flips {
            let place = (place * bytes.len() as f64) as usize;
            bytes[place] = byte;
        }
        bytes.truncate(((bytes.len() as f64 * cut) as usize).min(bytes.len()));
        for source in [OnnxModel::read(&bytes), OnnxModel::read_structure(&bytes)].into_iter().flatten() {
            let _ = source.network(input, 11, Task::Classification, Options::default());
            let _ = source.standalone_network(Options::default());
        }
    }

    /// Decodable files with hostile sizes, axes and attributes.
    #[test]
    fn hostile_integers_do_not_panic(
        which in 0usize..4,
        node in any::<prop::sample::Index>(),
        number in prop::sample::select(vec![-1i64, 0, 1, 2, 3, 7, 1 << 20, 1 << 40, i64::MAX, i64::MIN]),
        place in any::<prop::sample::Index>(),
    ) {
        let (name, input) = [
            ("branches-ts.onnx", Input::Image([8, 6, 2])),
            ("transformer-ts.onnx", Input::Symbols { window: 5, vocabulary: 11 }),
            ("encoder-dyn.onnx", Input::Symbols { window: 5, vocabulary: 11 }),
            ("stacked-dyn.onnx", Input::Flat(12)),
        ][which];
        let bytes = modified(name, |graph| {
            let count = graph.node.len();
            let node = &mut graph.node[node.index(count)];
            for attribute in &mut node.attribute {
                attribute.i = number;
                if !attribute.ints.is_empty() {
                    let count = attribute.ints.len();
                    attribute.ints[place.index(count)] = number;
                }
                if let Some(tensor) = &mut attribute.t && tensor.raw_data.len() >= 8 {
                    tensor.raw_data[..8].copy_from_slice(&number.to_le_bytes());
                }
            }
            let count = graph.initializer.len();
            let tensor = &mut graph.initializer[place.index(count)];
            if tensor.data_type == proto::data_type::INT64 && tensor.raw_data.len() >= 8 {
                tensor.raw_data[..8].copy_from_slice(&number.to_le_bytes());
            }
        });
        if let Ok(source) = OnnxModel::read(&bytes) {
            let _ = source.network(input, 11, Task::Classification, Options::default());
        }
    }
}
