//! An ONNX graph in the making: nodes, weights and the names between them.

use crate::onnx::proto::{Attribute, Dimension, Graph, Node, Size, Tensor, TensorShape, TensorType, Type};
use crate::onnx::proto::{ValueInfo, data_type};

/// `AttributeProto.AttributeType`.
const FLOAT: i32 = 1;
const INT: i32 = 2;
const STRING: i32 = 3;
const TENSOR: i32 = 4;
const INTS: i32 = 7;

/// Nodes and tensors so far.
#[derive(Default)]
pub struct Writer {
    pub graph: Graph,
    results: usize,
}

impl Writer {
    /// Appends a node with one result, and gives that result's name.
    pub fn node(&mut self, operator: &str, inputs: &[&str], attributes: Vec<Attribute>) -> String {
        let mut outputs = self.node_of(operator, inputs, attributes, 1);
        outputs.remove(0)
    }

    /// Appends a node with several results.
    pub fn node_of(
        &mut self,
        operator: &str,
        inputs: &[&str],
        attributes: Vec<Attribute>,
        results: usize,
    ) -> Vec<String> {
        self.results += 1;
        let name = format!("{operator}_{}", self.results);
        let output: Vec<String> = match results {
            1 => vec![name.clone()],
            _ => (0..results).map(|result| format!("{name}.{result}")).collect(),
        };
        self.graph.node.push(Node {
            input: inputs.iter().map(|name| name.to_string()).collect(),
            output: output.clone(),
            name,
            op_type: operator.into(),
            attribute: attributes,
            domain: String::new(),
        });
        output
    }

    /// Appends a tensor, unless it is there. If two readers want it in different orders, the second gets its own.
    pub fn tensor(&mut self, name: &str, sizes: &[usize], values: &[f32]) -> String {
        let mut tensor = Tensor {
            dims: sizes.iter().map(|size| *size as i64).collect(),
            data_type: data_type::FLOAT,
            raw_data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            name: name.into(),
            ..Tensor::default()
        };
        let mut number = 2;
        while let Some(found) = self.graph.initializer.iter().find(|found| found.name == tensor.name) {
            if *found == tensor {
                return tensor.name;
            }
            tensor.name = format!("{name}.{number}");
            number += 1;
        }
        self.graph.initializer.push(tensor);
        self.graph.initializer.last().map(|tensor| tensor.name.clone()).unwrap_or_default()
    }

    /// The numbers of each row's line at those places.
    pub fn pick(&mut self, value: &str, places: &[u32]) -> String {
        let places: Vec<i64> = places.iter().map(|place| i64::from(*place)).collect();
        let places = self.integers(&places, &[places.len() as i64]);
        self.node("Gather", &[value, &places], vec![int("axis", 1)])
    }

    /// A constant of the graph's own.
    pub fn constant(&mut self, sizes: &[usize], values: &[f32]) -> String {
        let sizes = sizes.iter().map(|size| *size as i64).collect();
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant_node(Tensor { dims: sizes, data_type: data_type::FLOAT, raw_data, ..Tensor::default() })
    }

    /// Whole numbers: sizes, places.
    pub fn integers(&mut self, values: &[i64], sizes: &[i64]) -> String {
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let dims = sizes.to_vec();
        self.constant_node(Tensor { dims, data_type: data_type::INT64, raw_data, ..Tensor::default() })
    }

    /// Constants are nodes, so that no reader takes them for weights.
    fn constant_node(&mut self, tensor: Tensor) -> String {
        let value =
            Attribute { name: "value".into(), t: Some(tensor), r#type: TENSOR, ..Attribute::default() };
        self.node("Constant", &[], vec![value])
    }

    /// The value under other sizes; 0 keeps the size that is there.
    pub fn reshape(&mut self, value: &str, sizes: &[i64]) -> String {
        let shape = self.integers(sizes, &[sizes.len() as i64]);
        self.node("Reshape", &[value, &shape], vec![])
    }

    /// The value with its axes in another order.
    pub fn transpose(&mut self, value: &str, order: &[i64]) -> String {
        self.node("Transpose", &[value], vec![ints("perm", order)])
    }

    /// The last node's single result under another name.
    pub fn rename_last(&mut self, name: &str) {
        if let Some(node) = self.graph.node.last_mut() {
            node.output = vec![name.into()];
        }
    }
}

/// A setting that is a whole number.
pub fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: name.into(), i: value, r#type: INT, ..Attribute::default() }
}

/// A setting that is a number.
pub fn float(name: &str, value: f32) -> Attribute {
    Attribute { name: name.into(), f: value, r#type: FLOAT, ..Attribute::default() }
}

/// A setting that is a word.
pub fn string(name: &str, value: &str) -> Attribute {
    Attribute { name: name.into(), s: value.as_bytes().to_vec(), r#type: STRING, ..Attribute::default() }
}

/// A setting that is a list of whole numbers.
pub fn ints(name: &str, values: &[i64]) -> Attribute {
    Attribute { name: name.into(), ints: values.to_vec(), r#type: INTS, ..Attribute::default() }
}

/// An input or output with the rows of a batch in front.
pub fn value_info(name: &str, elem_type: i32, sizes: &[usize]) -> ValueInfo {
    let rows = Dimension { value: Some(Size::Name("rows".into())) };
    let sizes = sizes.iter().map(|size| Dimension { value: Some(Size::Value(*size as i64)) });
    let shape = Some(TensorShape { dim: std::iter::once(rows).chain(sizes).collect() });
    let tensor_type = Some(TensorType { elem_type, shape });
    ValueInfo { name: name.into(), r#type: Some(Type { tensor_type }) }
}
