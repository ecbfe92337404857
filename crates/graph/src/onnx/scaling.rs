//! Scaling embedded in an exported file: how rows were scaled in training, and which values of the graph delimit it.
//! A job that trains on the file scales its rows the same way and removes the scaling from the graph, so that rows
//! are not scaled twice.

use super::proto::{ModelProto, StringStringEntryProto};
use thalweg_core::schema::{Scaling, TargetScaling};

/// Prefix of this crate's metadata keys.
const PREFIX: &str = "thalweg.";

/// Of an ensemble: the number of its members.
pub(super) const MEMBERS: &str = "thalweg.members";

#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddedScaling {
    pub scaling: Scaling,
    /// Scaling of a regression's target.
    pub target: TargetScaling,
    /// Name of the graph value that holds the scaled rows.
    pub(super) rows: String,
    /// Name of the graph value that holds the output before it is converted back into the data's units.
    pub(super) output: String,
}

impl EmbeddedScaling {
    pub(super) fn properties(&self) -> Vec<StringStringEntryProto> {
        let TargetScaling { shift, factor } = self.target;
        let texts = [
            ("rows", self.rows.clone()),
            ("answer", self.output.clone()),
            ("shift", joined(&self.scaling.shift)),
            ("factor", joined(&self.scaling.factor)),
            ("target", format!("{shift} {factor}")),
        ];
        texts.map(|(key, value)| StringStringEntryProto { key: format!("{PREFIX}{key}"), value }).into()
    }

    /// Reads it from a model's metadata; `None` if the model has none.
    pub(super) fn read(model: &ModelProto) -> Result<Option<EmbeddedScaling>, String> {
        let text = |key: &str| {
            let found = model
                .metadata_props
                .iter()
                .find(|property| property.key.strip_prefix(PREFIX).is_some_and(|name| name == key));
            found.map(|property| property.value.as_str())
        };
        let Some(rows) = text("rows") else { return Ok(None) };
        let invalid = |key: &str| format!("its metadata `{PREFIX}{key}` is invalid");
        let numbers = |key: &str| numbers(text(key).unwrap_or_default()).ok_or_else(|| invalid(key));
        let floats = |key: &str| {
            let all: Vec<f32> = numbers(key)?.into_iter().map(|number| number as f32).collect();
            if all.iter().all(|number| number.is_finite()) { Ok(all) } else { Err(invalid(key)) }
        };
        let target = match (&numbers("target")?[..], &floats("target")?[..]) {
            (&[shift, _], &[_, factor]) if factor != 0.0 => TargetScaling { shift, factor },
            _ => return Err(invalid("target")),
        };
        let scaling = Scaling { shift: numbers("shift")?, factor: floats("factor")? };
        let output = text("answer").ok_or_else(|| invalid("answer"))?;
        Ok(Some(EmbeddedScaling { scaling, target, rows: rows.into(), output: output.into() }))
    }

    /// Removes the scaling nodes from the graph: it then reads scaled rows and returns the network's raw output.
    pub(super) fn remove(&self, model: &mut ModelProto) -> Result<(), String> {
        model.metadata_props.retain(|property| !property.key.starts_with(PREFIX));
        let graph = model.graph.as_mut().ok_or("it has no graph")?;
        let input = graph.input.first().map(|input| input.name.clone()).ok_or("it has no input")?;
        let output = graph.output.first().map(|output| output.name.clone()).ok_or("it has no output")?;
        let exists =
            |name: &String| *name == input || graph.node.iter().any(|node| node.output.contains(name));
        if !exists(&self.rows) || !exists(&self.output) {
            return Err("its metadata names scaling values that the graph does not have".into());
        }
        if self.rows != input {
            for name in graph.node.iter_mut().flat_map(|node| &mut node.input) {
                if *name == self.rows {
                    name.clone_from(&input);
                }
            }
        }
        let last = graph.node.iter_mut().find(|node| node.output.first() == Some(&output));
        match last {
            Some(node) if node.op_type == "Identity" && node.input.len() == 1 => {
                node.input[0].clone_from(&self.output);
                Ok(())
            }
            _ => Err("its output is not the value that its metadata names".into()),
        }
    }
}

fn joined(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn numbers(text: &str) -> Option<Vec<f64>> {
    let number = |field: &str| field.parse().ok().filter(|number: &f64| number.is_finite());
    text.split_whitespace().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_metadata_round_trips() {
        let embedded = EmbeddedScaling {
            scaling: Scaling { shift: vec![1.0 / 3.0, -2e-9], factor: vec![0.1, 7.5e8] },
            target: TargetScaling { shift: -3.25, factor: 1.0 / 7.0 },
            rows: "Mul_2".into(),
            output: "Gemm_9".into(),
        };
        let mut model = ModelProto { metadata_props: embedded.properties(), ..ModelProto::default() };
        assert_eq!(EmbeddedScaling::read(&model), Ok(Some(embedded)));
        model.metadata_props[4].value = "1 0".into();
        assert!(EmbeddedScaling::read(&model).unwrap_err().contains("thalweg.target"));
        assert_eq!(EmbeddedScaling::read(&ModelProto::default()), Ok(None));
    }
}
