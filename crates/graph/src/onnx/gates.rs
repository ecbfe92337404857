//! The order of gates, which ONNX and PyTorch disagree on; here it is PyTorch's.

/// Where each of ONNX's gates stands among ours: input, output, forget, cell of an LSTM.
pub const LSTM_GATES: [usize; 4] = [0, 3, 1, 2];
/// Update, reset, new of a gated recurrent unit.
pub const GRU_GATES: [usize; 3] = [1, 0, 2];
