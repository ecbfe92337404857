//! Element-wise arithmetic and activations; recognises GELU and layer normalisation that the exporter decomposed.

use super::attributes::Attributes;
use super::constant::{ConstantTensor, TensorData};
use super::importer::Importer;
use super::value::{AttentionScores, NormStage, Value};
use super::view::View;
use super::weights::Operand;
use crate::activation::Activation;
use crate::onnx::proto::NodeProto;
use crate::op::elementwise::ElementwiseStep;
use crate::op::layer_normalize::LayerNormalize;
use crate::op::{Op, dropout};

/// Whether two views are the same value up to a factor.
fn same_up_to_factor(left: &View, right: &View) -> bool {
    left.node == right.node && left.axes == right.axes
}

/// Whether two views are the same value.
fn same(left: &View, right: &View) -> bool {
    same_up_to_factor(left, right) && left.factor == right.factor
}

impl Importer<'_> {
    /// `Add`, `Sub`, `Mul`, `Div`; at least one input depends on the rows.
    pub fn arithmetic(&mut self, node: &NodeProto) -> Result<Value, String> {
        let operator = node.op_type.as_str();
        let [left, right] = node.input.as_slice() else { return Err("expected two inputs".into()) };
        let (left, right) = (self.value(left)?, self.value(right)?);
        let constant_left =
            !matches!(left, Value::View(_) | Value::Scores(_) | Value::Erf(..) | Value::Norm(..));
        match (operator, constant_left) {
            ("Add" | "Mul", true) => self.combine(operator, right, left),
            ("Sub", true) => {
                // c - x is c + (-x).
                let Value::View(view) = right else {
                    return Err("its inputs match no supported pattern".into());
                };
                let factor = -view.factor;
                self.combine("Add", Value::View(View { factor, ..view }), left)
            }
            ("Div", true) => Err("its divisor depends on the rows".into()),
            _ => self.combine(operator, left, right),
        }
    }

    fn combine(&mut self, operator: &str, left: Value, right: Value) -> Result<Value, String> {
        let number = match &right {
            Value::Filled(value) => Some(*value),
            Value::Constant(constant) => constant.scalar(),
            Value::Weight(weight) if !self.is_bias_of_single_column(&left, weight.tensor.sizes.len()) => {
                weight.tensor.scalar()
            }
            _ => None,
        };
        if let Some(number) = number {
            return self.combine_scalar(operator, left, number);
        }
        match (operator, left, right) {
            ("Mul", Value::View(value), Value::Erf(of, true))
            | ("Mul", Value::Erf(of, true), Value::View(value))
                if same_up_to_factor(&value, &of) =>
            {
                // x * (1 + erf(x / sqrt 2)) is twice the GELU.
                let factor = 2.0 * value.factor;
                let node = self.builder.activate(of.node, Activation::GeluErf)?;
                Ok(Value::View(View { node, factor, ..of }))
            }
            ("Sub", Value::View(value), Value::Norm(NormStage::Mean, of)) if same(&value, &of) => {
                Ok(Value::Norm(NormStage::Centered, of))
            }
            ("Mul", Value::Norm(NormStage::Centered, of), Value::Norm(NormStage::Centered, other))
                if same(&of, &other) =>
            {
                Ok(Value::Norm(NormStage::Squared, of))
            }
            ("Div", Value::Norm(NormStage::Centered, value), Value::Norm(NormStage::StdDev(epsilon), of))
                if same(&value, &of) =>
            {
                let view = self.apply_factor(value)?;
                let (view, width) = self.with_innermost(&view, &[view.axes.len() - 1])?;
                let input = self.with_last_dim(&view, width)?;
                let node = self.builder.add(Op::LayerNormalize(LayerNormalize { epsilon }), &[input])?;
                Ok(Value::View(View { node, ..view }))
            }
            (operator, Value::View(left), Value::View(right)) => {
                let right = match operator {
                    "Sub" => View { factor: -right.factor, ..right },
                    _ => right,
                };
                let (left, right) = (self.apply_factor(left)?, self.apply_factor(right)?);
                let step = match operator {
                    "Mul" => ElementwiseStep::Multiply,
                    "Div" => return Err("its divisor depends on the rows".into()),
                    _ => ElementwiseStep::Add,
                };
                let (left, right) = self.aligned(&left, &right)?;
                let sizes: Vec<usize> = left.dims.iter().map(|(_, size)| *size).collect();
                let other = self.reshape_node(right.node, &sizes)?;
                let own = self.reshape_node(left.node, &sizes)?;
                let node = self.builder.add(Op::elementwise(step), &[own, other])?;
                Ok(Value::View(View { node, ..left }))
            }
            ("Add", Value::Scores(scores), Value::Constant(mask)) => self.add_mask(scores, &mask),
            ("Add", Value::Scores(scores), Value::Weight(mask)) => self.add_mask(scores, &mask.tensor),
            (operator, Value::View(view), right @ (Value::Weight(_) | Value::Constant(_))) => {
                let view = self.apply_factor(view)?;
                let operand = match (operator, right) {
                    ("Add" | "Mul", Value::Weight(weight)) if !weight.transposed => Operand::Weight(weight),
                    ("Add" | "Mul", Value::Constant(constant)) => Operand::Constant(constant),
                    ("Sub", Value::Constant(constant)) => Operand::Constant(each(constant, |value| -value)?),
                    ("Div", Value::Constant(constant)) => {
                        Operand::Constant(each(constant, |value| 1.0 / value)?)
                    }
                    _ => return Err("subtracting or dividing by a weight is not supported".into()),
                };
                let step = if matches!(operator, "Add" | "Sub") {
                    ElementwiseStep::Bias
                } else {
                    ElementwiseStep::Gain
                };
                self.apply_operand(&view, &operand, step).map(Value::View)
            }
            _ => Err("its inputs match no supported pattern".into()),
        }
    }

    /// Whether a weight of one element is the bias of a single column instead of a scalar.
    fn is_bias_of_single_column(&self, value: &Value, rank: usize) -> bool {
        let Value::View(view) = value else { return false };
        rank > 0 && view.axes.last().is_some_and(Vec::is_empty) && view.axes.len() > 1
    }

    /// A value combined with a scalar.
    fn combine_scalar(&mut self, operator: &str, left: Value, number: f32) -> Result<Value, String> {
        let factor = if operator == "Div" { 1.0 / number } else { number };
        match (operator, left) {
            ("Mul" | "Div", Value::View(view)) => {
                Ok(Value::View(View { factor: view.factor * factor, ..view }))
            }
            ("Mul" | "Div", Value::Scores(scores)) if !scores.causal && !scores.is_normalized => {
                Ok(Value::Scores(AttentionScores { factor: scores.factor * factor, ..scores }))
            }
            ("Add", Value::Scores(scores)) if number == 0.0 => Ok(Value::Scores(scores)),
            ("Add", Value::Erf(of, false)) if number == 1.0 => Ok(Value::Erf(of, true)),
            ("Add", Value::Norm(NormStage::Variance, of)) => {
                Ok(Value::Norm(NormStage::PlusEpsilon(number), of))
            }
            ("Add" | "Sub", Value::View(view)) => {
                let number = if operator == "Sub" { -number } else { number };
                let view = self.apply_factor(view)?;
                if number == 0.0 {
                    return Ok(Value::View(view));
                }
                let width = view.dims.last().map_or(1, |(_, size)| *size);
                let input = self.with_last_dim(&view, width)?;
                let operand = self.builder.add(Op::constant(&vec![number; width], &[width]), &[])?;
                let node = self.builder.add(Op::elementwise(ElementwiseStep::Bias), &[input, operand])?;
                Ok(Value::View(View { node, ..view }))
            }
            _ => Err("its inputs match no supported pattern".into()),
        }
    }

    pub fn scaled(&mut self, name: &str, factor: f32) -> Result<Value, String> {
        let view = self.lazy_view(name)?;
        Ok(Value::View(View { factor: view.factor * factor, ..view }))
    }

    /// `Pow` with exponent 2 or 3.
    pub fn pow(&mut self, name: &str, exponent: &str) -> Result<Value, String> {
        let exponent = match self.value(exponent)? {
            Value::Constant(constant) => match constant.data {
                TensorData::Ints(_) => constant.known_ints()?.first().map(|number| *number as f32),
                _ => constant.scalar(),
            },
            Value::Weight(weight) => weight.tensor.scalar(),
            _ => None,
        };
        let times = exponent.filter(|exponent| *exponent == 2.0 || *exponent == 3.0);
        let times = times.ok_or("only the exponents 2 and 3 are supported")?;
        if let (Value::Norm(NormStage::Centered, of), 2.0) = (self.value(name)?, times) {
            return Ok(Value::Norm(NormStage::Squared, of));
        }
        let view = self.view(name)?;
        let mut node = view.node;
        for _ in 1..times as usize {
            node = self.builder.add(Op::elementwise(ElementwiseStep::Multiply), &[node, view.node])?;
        }
        Ok(Value::View(View { node, ..view }))
    }

    /// `Sqrt`, as part of a decomposed normalisation.
    pub fn sqrt(&mut self, name: &str) -> Result<Value, String> {
        match self.value(name)? {
            Value::Norm(NormStage::PlusEpsilon(epsilon), of) => {
                Ok(Value::Norm(NormStage::StdDev(epsilon), of))
            }
            _ => Err("supported only as part of a layer normalisation".into()),
        }
    }

    /// `Erf` of a value over the root of 2, as part of a decomposed GELU.
    pub fn erf(&mut self, name: &str) -> Result<Value, String> {
        let view = self.lazy_view(name)?;
        match (view.factor - std::f32::consts::FRAC_1_SQRT_2).abs() < 1e-5 {
            true => Ok(Value::Erf(View { factor: 1.0, ..view }, false)),
            false => Err("supported only as part of a GELU".into()),
        }
    }

    /// Activation functions.
    pub fn activate(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let expect = |name: &str, supported: f32| match attributes.float(name, supported) {
            value if (value - supported).abs() < 1e-6 => Ok(()),
            value => Err(format!("attribute `{name}` = {value} is not supported ({supported} is)")),
        };
        let activation = match node.op_type.as_str() {
            "Relu" => Activation::Relu,
            "Tanh" => Activation::Tanh,
            "Sigmoid" => Activation::Sigmoid,
            "LeakyRelu" => {
                expect("alpha", 0.01)?;
                Activation::LeakyRelu
            }
            "Elu" => {
                expect("alpha", 1.0)?;
                Activation::Elu
            }
            _ => match attributes.string("approximate", "none").as_str() {
                "tanh" => Activation::Gelu,
                "none" => Activation::GeluErf,
                other => return Err(format!("attribute `approximate` = \"{other}\" is not supported")),
            },
        };
        let view = self.view(node.input.first().map_or("", String::as_str))?;
        let node = self.builder.activate(view.node, activation)?;
        Ok(Value::View(View { node, ..view }))
    }

    /// `Dropout`, active in training even if the file was exported for inference.
    pub fn dropout(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Vec<Value>, String> {
        let view = self.view(node.input.first().map_or("", String::as_str))?;
        let share = match node.input.get(1).filter(|name| !name.is_empty()) {
            Some(name) => self.weight(name)?.tensor.scalar(),
            None => Some(attributes.float("ratio", 0.5)),
        };
        let share = share
            .filter(|share| (0.0..1.0).contains(share))
            .ok_or("its `ratio` must be at least 0 and below 1")?;
        let layer = self.builder.next_dropout();
        let node =
            self.builder.add(Op::Dropout(dropout::Dropout { probability: share, layer }), &[view.node])?;
        Ok(vec![Value::View(View { node, ..view })])
    }
}

fn each(constant: ConstantTensor, function: fn(f32) -> f32) -> Result<ConstantTensor, String> {
    match &constant.data {
        TensorData::Floats(values) => {
            let data = TensorData::Floats(values.iter().map(|value| function(*value)).collect());
            Ok(ConstantTensor { sizes: constant.sizes, data })
        }
        _ => Err("expected floats".into()),
    }
}
