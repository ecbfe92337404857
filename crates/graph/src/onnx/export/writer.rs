//! Builds an ONNX graph: nodes, initializers and unique value names. `raw_data` is little-endian by definition of the
//! format, so elements are encoded with `to_le_bytes` on any host.

use crate::onnx::proto::{
    AttributeProto, Dimension, DimensionValue, GraphProto, NodeProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeProto,
};
use crate::onnx::proto::{ValueInfoProto, data_type};

/// `AttributeProto.AttributeType`.
const FLOAT: i32 = 1;
const INT: i32 = 2;
const STRING: i32 = 3;
const TENSOR: i32 = 4;
const INTS: i32 = 7;

#[derive(Default)]
pub struct GraphWriter {
    pub graph: GraphProto,
    /// Of the names of initializers.
    pub prefix: String,
    node_count: usize,
}

impl GraphWriter {
    /// Appends a node with one output and returns the output's name.
    pub fn node(&mut self, operator: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let mut outputs = self.node_with_outputs(operator, inputs, attributes, 1);
        outputs.remove(0)
    }

    /// Appends a node with several outputs.
    pub fn node_with_outputs(
        &mut self,
        operator: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
        outputs: usize,
    ) -> Vec<String> {
        self.node_count += 1;
        let name = format!("{operator}_{}", self.node_count);
        let output: Vec<String> = match outputs {
            1 => vec![name.clone()],
            _ => (0..outputs).map(|result| format!("{name}.{result}")).collect(),
        };
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|name| name.to_string()).collect(),
            output: output.clone(),
            name,
            op_type: operator.into(),
            attribute: attributes,
            domain: String::new(),
        });
        output
    }

    /// Adds an initializer unless an equal one exists. A parameter that two readers need in different orders is written
    /// twice.
    pub fn tensor(&mut self, name: &str, sizes: &[usize], values: &[f32]) -> String {
        let mut tensor = TensorProto {
            dims: sizes.iter().map(|size| *size as i64).collect(),
            data_type: data_type::FLOAT,
            raw_data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            name: format!("{}{name}", self.prefix),
            ..TensorProto::default()
        };
        let mut number = 2;
        while let Some(found) = self.graph.initializer.iter().find(|found| found.name == tensor.name) {
            if *found == tensor {
                return tensor.name;
            }
            tensor.name = format!("{}{name}.{number}", self.prefix);
            number += 1;
        }
        self.graph.initializer.push(tensor);
        self.graph.initializer.last().map(|tensor| tensor.name.clone()).unwrap_or_default()
    }

    /// The columns of a flat value at `indices`.
    pub fn gather_columns(&mut self, value: &str, indices: &[u32]) -> String {
        let indices: Vec<i64> = indices.iter().map(|index| i64::from(*index)).collect();
        let indices = self.integers(&indices, &[indices.len() as i64]);
        self.node("Gather", &[value, &indices], vec![int("axis", 1)])
    }

    pub fn constant(&mut self, sizes: &[usize], values: &[f32]) -> String {
        let sizes = sizes.iter().map(|size| *size as i64).collect();
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant_node(TensorProto {
            dims: sizes,
            data_type: data_type::FLOAT,
            raw_data,
            ..TensorProto::default()
        })
    }

    pub fn integers(&mut self, values: &[i64], sizes: &[i64]) -> String {
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let dims = sizes.to_vec();
        self.constant_node(TensorProto {
            dims,
            data_type: data_type::INT64,
            raw_data,
            ..TensorProto::default()
        })
    }

    /// Constants are nodes, so that importers do not take them for weights.
    fn constant_node(&mut self, tensor: TensorProto) -> String {
        let value = AttributeProto {
            name: "value".into(),
            t: Some(tensor),
            r#type: TENSOR,
            ..AttributeProto::default()
        };
        self.node("Constant", &[], vec![value])
    }

    /// `Reshape`; 0 keeps a size.
    pub fn reshape(&mut self, value: &str, sizes: &[i64]) -> String {
        let shape = self.integers(sizes, &[sizes.len() as i64]);
        self.node("Reshape", &[value, &shape], vec![])
    }

    pub fn transpose(&mut self, value: &str, order: &[i64]) -> String {
        self.node("Transpose", &[value], vec![ints("perm", order)])
    }

    /// Renames the output of the last node.
    pub fn rename_last(&mut self, name: &str) {
        if let Some(node) = self.graph.node.last_mut() {
            node.output = vec![name.into()];
        }
    }
}

pub fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i: value, r#type: INT, ..AttributeProto::default() }
}

pub fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { name: name.into(), f: value, r#type: FLOAT, ..AttributeProto::default() }
}

pub fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        s: value.as_bytes().to_vec(),
        r#type: STRING,
        ..AttributeProto::default()
    }
}

pub fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { name: name.into(), ints: values.to_vec(), r#type: INTS, ..AttributeProto::default() }
}

/// An input or output whose first axis is the dynamic batch size.
pub fn value_info(name: &str, elem_type: i32, sizes: &[usize]) -> ValueInfoProto {
    let rows = Dimension { value: Some(DimensionValue::Param("rows".into())) };
    let sizes = sizes.iter().map(|size| Dimension { value: Some(DimensionValue::Size(*size as i64)) });
    let shape = Some(TensorShapeProto { dim: std::iter::once(rows).chain(sizes).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type, shape });
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type }) }
}
