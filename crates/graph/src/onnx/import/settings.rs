//! The attributes of a node, by name and with the defaults of ONNX. The translation of the node must read each of them,
//! unless its value changes nothing; else the node is refused.

use crate::onnx::proto::{Attribute, Node, Tensor};
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

/// What an attribute holds where it changes nothing.
enum Usual {
    Int(i64),
    Float(f32),
    Word(&'static str),
}

/// Attributes that may go unread at their default. Operator sets add attributes to operators; most of them are about
/// types and modes that are refused anyway.
const HARMLESS: [(&str, &str, Usual); 12] = [
    ("Cast", "round_mode", Usual::Word("up")),
    ("Cast", "saturate", Usual::Int(1)),
    ("LayerNormalization", "stash_type", Usual::Int(1)),
    ("MaxPool", "storage_order", Usual::Int(0)),
    ("Mod", "fmod", Usual::Int(0)),
    ("Range", "stash_type", Usual::Int(1)),
    ("Reshape", "allowzero", Usual::Int(0)),
    ("Resize", "antialias", Usual::Int(0)),
    ("Resize", "cubic_coeff_a", Usual::Float(-0.75)),
    ("Resize", "exclude_outside", Usual::Int(0)),
    ("Resize", "extrapolation_value", Usual::Float(0.0)),
    ("Resize", "keep_aspect_ratio_policy", Usual::Word("stretch")),
];

/// Which attributes of a node have been read, and which of them are of another type than the operator asks for.
#[derive(Default)]
pub struct Taken {
    names: RefCell<Vec<String>>,
    mistyped: RefCell<Vec<String>>,
}

/// What a node says about itself.
#[derive(Clone, Copy)]
pub struct Settings<'a> {
    node: &'a Node,
    taken: &'a Taken,
}

impl<'a> Settings<'a> {
    /// The attributes of a node, none of them read.
    pub fn new(node: &'a Node, taken: &'a Taken) -> Settings<'a> {
        Settings { node, taken }
    }

    fn find(self, name: &str, kind: i32) -> Option<&'a Attribute> {
        let attribute = self.node.attribute.iter().find(|attribute| attribute.name == name)?;
        self.taken.names.borrow_mut().push(name.into());
        // Old files leave the type out.
        if attribute.r#type == kind || attribute.r#type == 0 {
            return Some(attribute);
        }
        self.taken.mistyped.borrow_mut().push(name.into());
        None
    }

    /// Refuses what was not read and is not harmless; names the attribute.
    pub fn finish(self) -> Result<(), String> {
        if let Some(name) = self.taken.mistyped.borrow().first() {
            return Err(format!("attribute `{name}` is not of the type that the operator asks for"));
        }
        let names = self.taken.names.borrow();
        let mut unread = self.node.attribute.iter().filter(|attribute| !names.contains(&attribute.name));
        match unread.find(|attribute| !self.is_harmless(attribute)) {
            Some(attribute) => {
                let (name, value) = (&attribute.name, shown(attribute));
                Err(format!("attribute `{name}`{value} is not supported"))
            }
            None => Ok(()),
        }
    }

    fn is_harmless(self, attribute: &Attribute) -> bool {
        HARMLESS.iter().any(|(operator, name, usual)| {
            let holds = match *usual {
                Usual::Int(usual) => matches!(attribute.r#type, 0 | kind::INT) && attribute.i == usual,
                Usual::Float(usual) => matches!(attribute.r#type, 0 | kind::FLOAT) && attribute.f == usual,
                Usual::Word(usual) => {
                    matches!(attribute.r#type, 0 | kind::STRING) && attribute.s == usual.as_bytes()
                }
            };
            *operator == self.node.op_type && *name == attribute.name && holds
        })
    }

    /// A whole number.
    pub fn int(self, name: &str, usual: i64) -> i64 {
        self.given(name).unwrap_or(usual)
    }

    /// A whole number, if it is given.
    pub fn given(self, name: &str) -> Option<i64> {
        self.find(name, kind::INT).map(|attribute| attribute.i)
    }

    /// A whole number that must be given.
    pub fn needed(self, name: &str) -> Result<i64, String> {
        self.given(name).ok_or_else(|| format!("attribute `{name}` is missing"))
    }

    /// A number.
    pub fn float(self, name: &str, usual: f32) -> f32 {
        self.given_float(name).unwrap_or(usual)
    }

    /// A number, if it is given.
    pub fn given_float(self, name: &str) -> Option<f32> {
        self.find(name, kind::FLOAT).map(|attribute| attribute.f)
    }

    /// A word.
    pub fn word(self, name: &str, usual: &'static str) -> String {
        let attribute = self.find(name, kind::STRING);
        attribute.map_or(usual.into(), |attribute| String::from_utf8_lossy(&attribute.s).into_owned())
    }

    /// Whole numbers, if they are given.
    pub fn ints(self, name: &str) -> Option<&'a [i64]> {
        self.find(name, kind::INTS).map(|attribute| attribute.ints.as_slice())
    }

    /// Numbers.
    pub fn floats(self, name: &str) -> Option<&'a [f32]> {
        self.find(name, kind::FLOATS).map(|attribute| attribute.floats.as_slice())
    }

    /// Words.
    pub fn words(self, name: &str) -> Vec<String> {
        let attribute = self.find(name, kind::STRINGS);
        let words = attribute.into_iter().flat_map(|attribute| &attribute.strings);
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// A tensor.
    pub fn tensor(self, name: &str) -> Option<&'a Tensor> {
        self.find(name, kind::TENSOR).and_then(|attribute| attribute.t.as_ref())
    }

    /// A pair of sizes, height and width.
    pub fn pair(self, name: &str, usual: usize) -> Result<[usize; 2], String> {
        let Some(values) = self.ints(name) else { return Ok([usual; 2]) };
        let size = |value: i64| usize::try_from(value).ok().filter(|size| *size <= 1 << 24);
        match values {
            &[height, width] => match (size(height), size(width)) {
                (Some(height), Some(width)) => Ok([height, width]),
                _ => Err(format!("{name} {values:?} makes no sense")),
            },
            _ => Err(format!("{name} {values:?}: only images (height and width) are supported")),
        }
    }
}

/// ` = 3`, where the value can be shown in a line.
fn shown(attribute: &Attribute) -> String {
    match attribute.r#type {
        kind::FLOAT => format!(" = {}", attribute.f),
        kind::INT => format!(" = {}", attribute.i),
        kind::STRING => format!(" = \"{}\"", String::from_utf8_lossy(&attribute.s)),
        kind::INTS if attribute.ints.len() <= 8 => format!(" = {:?}", attribute.ints),
        _ => String::new(),
    }
}
