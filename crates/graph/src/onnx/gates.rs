//! Gate order of recurrent weights: this crate uses PyTorch's, ONNX has its own.

/// Index in PyTorch's order (input, forget, cell, output) of each gate in ONNX's order (input, output, forget, cell).
pub const LSTM_GATES: [usize; 4] = [0, 3, 1, 2];
/// Index in PyTorch's order (reset, update, new) of each gate in ONNX's order (update, reset, new).
pub const GRU_GATES: [usize; 3] = [1, 0, 2];
