//! The messages of `onnx.proto` that models of tensors need, by the public numbers of their fields.
//!
//! What is left out (control flow, sequences, sparse tensors, training information) is skipped by the decoder. Graphs
//! inside attributes stay bytes, so that no message contains itself and nothing recurses.

use prost::Message;

/// `TensorProto.DataType`, as far as it is understood here.
pub mod data_type {
    /// 32-bit numbers with a fraction.
    pub const FLOAT: i32 = 1;
    /// 32-bit whole numbers.
    pub const INT32: i32 = 6;
    /// 64-bit whole numbers.
    pub const INT64: i32 = 7;
    /// Truth values, one byte each.
    pub const BOOL: i32 = 9;
    /// 64-bit numbers with a fraction.
    pub const DOUBLE: i32 = 11;
}

/// A model: a graph and what it is written against.
#[derive(Clone, PartialEq, Message)]
pub struct Model {
    /// Version of the format itself.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// Who wrote it.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// In which version.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// For people.
    #[prost(string, tag = "6")]
    pub doc_string: String,
    /// What is computed.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<Graph>,
    /// The operator sets that the nodes are from.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSet>,
    /// Names and texts of the writer's own.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<Property>,
}

/// One operator set.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSet {
    /// Empty for ONNX's own.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Its version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A name and a text.
#[derive(Clone, PartialEq, Message)]
pub struct Property {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The text.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Nodes in an order in which they can be computed.
#[derive(Clone, PartialEq, Message)]
pub struct Graph {
    /// The nodes.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<Node>,
    /// For people.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Named tensors: weights, statistics, constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<Tensor>,
    /// What the caller gives.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfo>,
    /// What the caller gets.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfo>,
}

/// One operation.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// Names of what it reads; an empty one is left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of its results.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Its own name, for people.
    #[prost(string, tag = "3")]
    pub name: String,
    /// What it does.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Its settings.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<Attribute>,
    /// The operator set it is from.
    #[prost(string, tag = "7")]
    pub domain: String,
}

/// A setting of a node.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A number with a fraction.
    #[prost(float, tag = "2")]
    pub f: f32,
    /// A whole number.
    #[prost(int64, tag = "3")]
    pub i: i64,
    /// A text.
    #[prost(bytes = "vec", tag = "4")]
    pub s: Vec<u8>,
    /// A tensor.
    #[prost(message, optional, tag = "5")]
    pub t: Option<Tensor>,
    /// A graph, not looked into.
    #[prost(bytes = "vec", optional, tag = "6")]
    pub g: Option<Vec<u8>>,
    /// Numbers with a fraction.
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    /// Whole numbers.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Texts.
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub strings: Vec<Vec<u8>>,
    /// Which of the above counts.
    #[prost(int32, tag = "20")]
    pub r#type: i32,
}

/// Numbers under a shape.
#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    /// Sizes, outermost first.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// See [`data_type`].
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Numbers, unless `raw_data` holds them.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Small whole numbers and truth values, unless `raw_data` holds them.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Whole numbers, unless `raw_data` holds them.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// Its name, where it is an initializer.
    #[prost(string, tag = "8")]
    pub name: String,
    /// The numbers as little-endian bytes.
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
    /// Numbers of double size, unless `raw_data` holds them.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// Where the numbers are, if they are in another file.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<Property>,
    /// 1 if they are in another file.
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

/// A name with a type.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfo {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<Type>,
}

/// A type; tensors only.
#[derive(Clone, PartialEq, Message)]
pub struct Type {
    /// Of a tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
}

/// Elements and sizes of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    /// See [`data_type`].
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// Its sizes, if anything is known of them.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShape>,
}

/// Sizes, some of them by name only.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShape {
    /// Outermost first.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// One size.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    /// A number, a name or nothing.
    #[prost(oneof = "Size", tags = "1, 2")]
    pub value: Option<Size>,
}

/// What is known of a size.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Size {
    /// The number.
    #[prost(int64, tag = "1")]
    Value(i64),
    /// A name that stands for it.
    #[prost(string, tag = "2")]
    Name(String),
}
