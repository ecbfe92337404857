//! The settings of a node, by name and with the defaults of ONNX.

use crate::onnx::proto::{Attribute, Node, Tensor};

/// What a node says about itself.
#[derive(Clone, Copy)]
pub struct Settings<'a>(pub &'a Node);

impl<'a> Settings<'a> {
    fn find(self, name: &str) -> Option<&'a Attribute> {
        self.0.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// A whole number.
    pub fn int(self, name: &str, usual: i64) -> i64 {
        self.find(name).map_or(usual, |attribute| attribute.i)
    }

    /// A whole number, if it is given.
    pub fn given(self, name: &str) -> Option<i64> {
        self.find(name).map(|attribute| attribute.i)
    }

    /// A number.
    pub fn float(self, name: &str, usual: f32) -> f32 {
        self.find(name).map_or(usual, |attribute| attribute.f)
    }

    /// A word.
    pub fn word(self, name: &str, usual: &'static str) -> String {
        self.find(name).map_or(usual.into(), |attribute| String::from_utf8_lossy(&attribute.s).into_owned())
    }

    /// Whole numbers, if they are given.
    pub fn ints(self, name: &str) -> Option<&'a [i64]> {
        self.find(name).map(|attribute| attribute.ints.as_slice())
    }

    /// Numbers.
    pub fn floats(self, name: &str) -> Option<&'a [f32]> {
        self.find(name).map(|attribute| attribute.floats.as_slice())
    }

    /// Words.
    pub fn words(self, name: &str) -> Vec<String> {
        let attribute = self.find(name);
        let words = attribute.into_iter().flat_map(|attribute| &attribute.strings);
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// A tensor.
    pub fn tensor(self, name: &str) -> Option<&'a Tensor> {
        self.find(name).and_then(|attribute| attribute.t.as_ref())
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
