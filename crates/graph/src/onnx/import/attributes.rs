//! The attributes of a node, by name and with ONNX's defaults. A node's translation must read every attribute that is
//! not at a default without effect; otherwise the node is rejected.

use crate::onnx::proto::{AttributeProto, NodeProto, TensorProto};
use std::cell::RefCell;

/// `AttributeProto.AttributeType`.
mod kind {
    pub const FLOAT: i32 = 1;
    pub const INT: i32 = 2;
    pub const STRING: i32 = 3;
    pub const TENSOR: i32 = 4;
    pub const FLOATS: i32 = 6;
    pub const INTS: i32 = 7;
    pub const STRINGS: i32 = 8;
}

/// The default of an attribute.
enum DefaultValue {
    Int(i64),
    Float(f32),
    String(&'static str),
}

/// Attributes that may stay unread at their default: newer operator sets add them for types and modes that are not
/// supported here.
const NO_EFFECT_AT_DEFAULT: [(&str, &str, DefaultValue); 12] = [
    ("Cast", "round_mode", DefaultValue::String("up")),
    ("Cast", "saturate", DefaultValue::Int(1)),
    ("LayerNormalization", "stash_type", DefaultValue::Int(1)),
    ("MaxPool", "storage_order", DefaultValue::Int(0)),
    ("Mod", "fmod", DefaultValue::Int(0)),
    ("Range", "stash_type", DefaultValue::Int(1)),
    ("Reshape", "allowzero", DefaultValue::Int(0)),
    ("Resize", "antialias", DefaultValue::Int(0)),
    ("Resize", "cubic_coeff_a", DefaultValue::Float(-0.75)),
    ("Resize", "exclude_outside", DefaultValue::Int(0)),
    ("Resize", "extrapolation_value", DefaultValue::Float(0.0)),
    ("Resize", "keep_aspect_ratio_policy", DefaultValue::String("stretch")),
];

/// The attributes of a node read so far, and those of them with an unexpected type.
#[derive(Default)]
pub struct ReadAttributes {
    names: RefCell<Vec<String>>,
    mistyped: RefCell<Vec<String>>,
}

#[derive(Clone, Copy)]
pub struct Attributes<'a> {
    node: &'a NodeProto,
    read_so_far: &'a ReadAttributes,
}

impl<'a> Attributes<'a> {
    pub fn new(node: &'a NodeProto, read_so_far: &'a ReadAttributes) -> Attributes<'a> {
        Attributes { node, read_so_far }
    }

    fn find(self, name: &str, kind: i32) -> Option<&'a AttributeProto> {
        let attribute = self.node.attribute.iter().find(|attribute| attribute.name == name)?;
        self.read_so_far.names.borrow_mut().push(name.into());
        // Old files omit the type.
        if attribute.r#type == kind || attribute.r#type == 0 {
            return Some(attribute);
        }
        self.read_so_far.mistyped.borrow_mut().push(name.into());
        None
    }

    /// Rejects attributes of an unexpected type, and unread ones that are not at a default without effect.
    pub fn check_all_read(self) -> Result<(), String> {
        if let Some(name) = self.read_so_far.mistyped.borrow().first() {
            return Err(format!("attribute `{name}` is not of the type that the operator expects"));
        }
        let names = self.read_so_far.names.borrow();
        let mut unread = self.node.attribute.iter().filter(|attribute| !names.contains(&attribute.name));
        match unread.find(|attribute| !self.has_no_effect(attribute)) {
            Some(attribute) => {
                let (name, value) = (&attribute.name, format_value(attribute));
                Err(format!("attribute `{name}`{value} is not supported"))
            }
            None => Ok(()),
        }
    }

    fn has_no_effect(self, attribute: &AttributeProto) -> bool {
        NO_EFFECT_AT_DEFAULT.iter().any(|(operator, name, default)| {
            let holds = match *default {
                DefaultValue::Int(default) => {
                    matches!(attribute.r#type, 0 | kind::INT) && attribute.i == default
                }
                DefaultValue::Float(default) => {
                    matches!(attribute.r#type, 0 | kind::FLOAT) && attribute.f == default
                }
                DefaultValue::String(default) => {
                    matches!(attribute.r#type, 0 | kind::STRING) && attribute.s == default.as_bytes()
                }
            };
            *operator == self.node.op_type && *name == attribute.name && holds
        })
    }

    pub fn int(self, name: &str, default: i64) -> i64 {
        self.optional_int(name).unwrap_or(default)
    }

    pub fn optional_int(self, name: &str) -> Option<i64> {
        self.find(name, kind::INT).map(|attribute| attribute.i)
    }

    pub fn required_int(self, name: &str) -> Result<i64, String> {
        self.optional_int(name).ok_or_else(|| format!("attribute `{name}` is missing"))
    }

    pub fn float(self, name: &str, default: f32) -> f32 {
        self.optional_float(name).unwrap_or(default)
    }

    pub fn optional_float(self, name: &str) -> Option<f32> {
        self.find(name, kind::FLOAT).map(|attribute| attribute.f)
    }

    pub fn string(self, name: &str, default: &'static str) -> String {
        let attribute = self.find(name, kind::STRING);
        attribute.map_or(default.into(), |attribute| String::from_utf8_lossy(&attribute.s).into_owned())
    }

    pub fn ints(self, name: &str) -> Option<&'a [i64]> {
        self.find(name, kind::INTS).map(|attribute| attribute.ints.as_slice())
    }

    pub fn floats(self, name: &str) -> Option<&'a [f32]> {
        self.find(name, kind::FLOATS).map(|attribute| attribute.floats.as_slice())
    }

    pub fn strings(self, name: &str) -> Vec<String> {
        let attribute = self.find(name, kind::STRINGS);
        let strings = attribute.into_iter().flat_map(|attribute| &attribute.strings);
        strings.map(|string| String::from_utf8_lossy(string).into_owned()).collect()
    }

    pub fn tensor(self, name: &str) -> Option<&'a TensorProto> {
        self.find(name, kind::TENSOR).and_then(|attribute| attribute.t.as_ref())
    }

    /// Height and width.
    pub fn int_pair(self, name: &str, default: usize) -> Result<[usize; 2], String> {
        let Some(values) = self.ints(name) else { return Ok([default; 2]) };
        let size = |value: i64| usize::try_from(value).ok().filter(|size| *size <= 1 << 24);
        match values {
            &[height, width] => match (size(height), size(width)) {
                (Some(height), Some(width)) => Ok([height, width]),
                _ => Err(format!("attribute `{name}` = {values:?} is invalid")),
            },
            _ => {
                Err(format!("attribute `{name}` = {values:?}: only images (height and width) are supported"))
            }
        }
    }
}

/// ` = 3`; empty for tensors and long lists.
fn format_value(attribute: &AttributeProto) -> String {
    match attribute.r#type {
        kind::FLOAT => format!(" = {}", attribute.f),
        kind::INT => format!(" = {}", attribute.i),
        kind::STRING => format!(" = \"{}\"", String::from_utf8_lossy(&attribute.s)),
        kind::INTS if attribute.ints.len() <= 8 => format!(" = {:?}", attribute.ints),
        _ => String::new(),
    }
}
