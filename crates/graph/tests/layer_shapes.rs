//! Errors of layers that do not fit their input.

use thalweg_core::Task;
use thalweg_graph::{Input, Network};

fn texts(layers: &[&str]) -> Vec<String> {
    layers.iter().map(|text| text.to_string()).collect()
}

#[test]
fn empty_images_and_windows_larger_than_the_image_are_rejected() {
    let message = |layers: &[&str], sizes| {
        let built = Network::build_for(&texts(layers), Input::Image(sizes), 3, Task::Classification);
        built.unwrap_err().message
    };
    for sizes in [[0, 4, 1], [4, 0, 1], [4, 4, 0]] {
        assert!(message(&["conv 2 1x1", "dense auto"], sizes).contains("no columns to learn from"));
    }
    for layer in ["conv 2 2x2", "conv 2 3x1", "pool max 2", "pool mean 3"] {
        assert!(message(&[layer, "dense auto"], [1, 1, 2]).starts_with("model.layers[0] "), "{layer}");
    }
}

#[test]
fn a_shape_error_names_layer_expected_and_actual() {
    let message = |layers: &[&str], input: Input| {
        Network::build_for(&texts(layers), input, 3, Task::Classification).unwrap_err().message
    };
    let (image, text) = (Input::Image([6, 6, 2]), Input::Symbols { window: 4, vocabulary: 3 });
    let cases = [
        (
            message(&["dense 8", "conv 4 3x3", "dense auto"], image),
            "model.layers[1] \"conv 4 3x3\": expected an image (height x width x channels), got rows x 8",
        ),
        (
            message(&["conv 4 7x7 pad 1", "conv 4 7x5", "dense auto"], image),
            "model.layers[1] \"conv 4 7x5\": expected an image of at least 7x5, got 2x2",
        ),
        (
            message(&["embedding 4", "dense auto"], image),
            "model.layers[0] \"embedding 4\": expected symbols (text), got rows x 6 x 6 x 2",
        ),
        (
            message(&["embedding 4", "embedding 4", "dense auto"], text),
            "model.layers[1] \"embedding 4\": expected to be the first layer, directly on the text, got rows x 4 x 4",
        ),
        (
            message(&["lstm 4", "dense auto"], image),
            "model.layers[0] \"lstm 4\": expected a sequence (positions x numbers), got rows x 6 x 6 x 2",
        ),
        (
            message(&["embedding 5", "attention 2", "dense auto"], text),
            "model.layers[1] \"attention 2\": expected a width divisible by 2 heads, got 5",
        ),
        (
            message(&["residual dense 8", "dense auto"], Input::Flat(4)),
            "model.layers[0] \"residual dense 8\": expected the inner layers to keep the shape rows x 4, got rows x 8",
        ),
        (
            message(&["residual dense 8 | conv 2 3x3", "dense auto"], image),
            "model.layers[0] \"residual dense 8 | conv 2 3x3\": \"conv 2 3x3\": expected an image (height x width x \
             channels), got rows x 8",
        ),
        (
            message(&["conv 3 3x3"], image),
            "model.layers[0] \"conv 3 3x3\": expected a flat vector at the end, got rows x 4 x 4 x 3",
        ),
        (
            message(&["conv 4 3x3 groups 3", "dense auto"], image),
            "model.layers[0] \"conv 4 3x3 groups 3\": expected channels and filters divisible by 3 groups, \
             got 2 channels and 4 filters",
        ),
        (
            message(&["pool max 2 pad 2", "dense auto"], image),
            "model.layers[0] \"pool max 2x2 pad 2\": expected padding of at most half of the window of 2x2, got 2",
        ),
        (
            message(&["reshape 5x5", "dense auto"], image),
            "model.layers[0] \"reshape 5x5\": expected 25 elements per row, got rows x 6 x 6 x 2",
        ),
        (
            message(&["dense 7"], image),
            "model.layers[0] \"dense 7\": expected 3 numbers (the data has 3 classes), got 7",
        ),
    ];
    for (got, expected) in cases {
        assert_eq!(got, expected);
    }
}
