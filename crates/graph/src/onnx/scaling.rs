//! The scaling that an exported file brings along: how rows were scaled when the model was trained, and between which
//! of its values that is computed. A job that trains on the file scales its rows the same way, instead of a second time.

use super::proto::{Model, Property};
use thalweg_core::schema::{Scaling, TargetScaling};

/// What the keys of the file's metadata begin with.
const PREFIX: &str = "thalweg.";

/// What a file says about the scaling in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedded {
    /// Of the rows.
    pub scaling: Scaling,
    /// Of the target of a regression.
    pub target: TargetScaling,
    /// The value of the graph that holds the scaled rows.
    pub(super) rows: String,
    /// The value that holds the answer before it is brought back into the data's units.
    pub(super) answer: String,
}

impl Embedded {
    /// As metadata of a file.
    pub(super) fn properties(&self) -> Vec<Property> {
        let TargetScaling { shift, factor } = self.target;
        let texts = [
            ("rows", self.rows.clone()),
            ("answer", self.answer.clone()),
            ("shift", line(&self.scaling.shift)),
            ("factor", line(&self.scaling.factor)),
            ("target", format!("{shift} {factor}")),
        ];
        texts.map(|(key, value)| Property { key: format!("{PREFIX}{key}"), value }).into()
    }

    /// Reads it from a file's metadata; nothing if the file has none.
    pub(super) fn read(model: &Model) -> Result<Option<Embedded>, String> {
        let text = |key: &str| {
            let found = model
                .metadata_props
                .iter()
                .find(|property| property.key.strip_prefix(PREFIX).is_some_and(|name| name == key));
            found.map(|property| property.value.as_str())
        };
        let Some(rows) = text("rows") else { return Ok(None) };
        let broken = |key: &str| format!("its metadata `{PREFIX}{key}` makes no sense");
        let numbers = |key: &str| numbers(text(key).unwrap_or_default()).ok_or_else(|| broken(key));
        let singles = |key: &str| {
            let all: Vec<f32> = numbers(key)?.into_iter().map(|number| number as f32).collect();
            if all.iter().all(|number| number.is_finite()) { Ok(all) } else { Err(broken(key)) }
        };
        let target = match (&numbers("target")?[..], &singles("target")?[..]) {
            (&[shift, _], &[_, factor]) if factor != 0.0 => TargetScaling { shift, factor },
            _ => return Err(broken("target")),
        };
        let scaling = Scaling { shift: numbers("shift")?, factor: singles("factor")? };
        let answer = text("answer").ok_or_else(|| broken("answer"))?;
        Ok(Some(Embedded { scaling, target, rows: rows.into(), answer: answer.into() }))
    }

    /// Takes it out of a graph: rows come scaled, and answers are given as the network has them.
    pub(super) fn remove(&self, model: &mut Model) -> Result<(), String> {
        model.metadata_props.retain(|property| !property.key.starts_with(PREFIX));
        let graph = model.graph.as_mut().ok_or("it has no graph")?;
        let given = graph.input.first().map(|input| input.name.clone()).ok_or("it has no input")?;
        let output = graph.output.first().map(|output| output.name.clone()).ok_or("it has no output")?;
        let is_there =
            |name: &String| *name == given || graph.node.iter().any(|node| node.output.contains(name));
        if !is_there(&self.rows) || !is_there(&self.answer) {
            return Err("its scaling is not where its metadata says".into());
        }
        if self.rows != given {
            for name in graph.node.iter_mut().flat_map(|node| &mut node.input) {
                if *name == self.rows {
                    name.clone_from(&given);
                }
            }
        }
        let closing = graph.node.iter_mut().find(|node| node.output.first() == Some(&output));
        match closing {
            Some(node) if node.op_type == "Identity" && node.input.len() == 1 => {
                node.input[0].clone_from(&self.answer);
                Ok(())
            }
            _ => Err("its answer is not where its metadata says".into()),
        }
    }
}

fn line(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn numbers(text: &str) -> Option<Vec<f64>> {
    let number = |word: &str| word.parse().ok().filter(|number: &f64| number.is_finite());
    text.split_whitespace().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let embedded = Embedded {
            scaling: Scaling { shift: vec![1.0 / 3.0, -2e-9], factor: vec![0.1, 7.5e8] },
            target: TargetScaling { shift: -3.25, factor: 1.0 / 7.0 },
            rows: "Mul_2".into(),
            answer: "Gemm_9".into(),
        };
        let mut model = Model { metadata_props: embedded.properties(), ..Model::default() };
        assert_eq!(Embedded::read(&model), Ok(Some(embedded)));
        model.metadata_props[4].value = "1 0".into();
        assert!(Embedded::read(&model).unwrap_err().contains("thalweg.target"));
        assert_eq!(Embedded::read(&Model::default()), Ok(None));
    }
}
