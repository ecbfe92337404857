//! Arithmetic on each element, activations, and the patterns that arithmetic spells out.

use super::importer::Importer;
use super::item::{Item, Moment, Scores};
use super::settings::Settings;
use super::tensor::{Constant, Data};
use super::view::View;
use super::weights::Operand;
use crate::activation::Activation;
use crate::onnx::proto::Node;
use crate::op::elementwise::Step;
use crate::op::normalize::Normalize;
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
    /// `Add`, `Sub`, `Mul`, `Div` of two values, at least one of which depends on the rows.
    pub fn arithmetic(&mut self, node: &Node) -> Result<Item, String> {
        let operator = node.op_type.as_str();
        let [left, right] = node.input.as_slice() else { return Err("expected two inputs".into()) };
        let (left, right) = (self.item(left)?, self.item(right)?);
        let turned = !matches!(left, Item::View(_) | Item::Scores(_) | Item::Erf(..) | Item::Moment(..));
        match (operator, turned) {
            ("Add" | "Mul", true) => self.combine(operator, right, left),
            ("Sub", true) => {
                // c - x is c + (-x).
                let Item::View(view) = right else { return Err("subtracts what is no value".into()) };
                let factor = -view.factor;
                self.combine("Add", Item::View(View { factor, ..view }), left)
            }
            ("Div", true) => Err("divides by values that depend on the rows".into()),
            _ => self.combine(operator, left, right),
        }
    }

    fn combine(&mut self, operator: &str, left: Item, right: Item) -> Result<Item, String> {
        let number = match &right {
            Item::Filled(value) => Some(*value),
            Item::Constant(constant) => constant.single(),
            Item::Weight(weight) if !self.is_bias_of_one(&left, weight.tensor.sizes.len()) => {
                weight.tensor.single()
            }
            _ => None,
        };
        if let Some(number) = number {
            return self.with_number(operator, left, number);
        }
        match (operator, left, right) {
            ("Mul", Item::View(value), Item::Erf(of, true))
            | ("Mul", Item::Erf(of, true), Item::View(value))
                if same_up_to_factor(&value, &of) =>
            {
                // x * (1 + erf(x / sqrt 2)) is twice the GELU.
                let factor = 2.0 * value.factor;
                let node = self.assembly.activate(of.node, Activation::GeluErf)?;
                Ok(Item::View(View { node, factor, ..of }))
            }
            ("Sub", Item::View(value), Item::Moment(Moment::Mean, of)) if same(&value, &of) => {
                Ok(Item::Moment(Moment::Centered, of))
            }
            ("Mul", Item::Moment(Moment::Centered, of), Item::Moment(Moment::Centered, other))
                if same(&of, &other) =>
            {
                Ok(Item::Moment(Moment::Squared, of))
            }
            ("Div", Item::Moment(Moment::Centered, value), Item::Moment(Moment::Deviation(epsilon), of))
                if same(&value, &of) =>
            {
                let view = self.settled(value)?;
                let (view, width) = self.ending_with(&view, &[view.axes.len() - 1])?;
                let lines = self.lines(&view, width)?;
                let node = self.assembly.add(Op::Normalize(Normalize { epsilon }), &[lines])?;
                Ok(Item::View(View { node, ..view }))
            }
            (operator, Item::View(left), Item::View(right)) => {
                let right = match operator {
                    "Sub" => View { factor: -right.factor, ..right },
                    _ => right,
                };
                let (left, right) = (self.settled(left)?, self.settled(right)?);
                let step = match operator {
                    "Mul" => Step::Multiply,
                    "Div" => return Err("divides by values that depend on the rows".into()),
                    _ => Step::Add,
                };
                let (left, right) = self.aligned(&left, &right)?;
                let sizes: Vec<usize> = left.atoms.iter().map(|(_, size)| *size).collect();
                let other = self.sized(right.node, &sizes)?;
                let own = self.sized(left.node, &sizes)?;
                let node = self.assembly.add(Op::step(step), &[own, other])?;
                Ok(Item::View(View { node, ..left }))
            }
            ("Add", Item::Scores(scores), Item::Constant(mask)) => self.add_mask(scores, &mask),
            ("Add", Item::Scores(scores), Item::Weight(mask)) => self.add_mask(scores, &mask.tensor),
            (operator, Item::View(view), right @ (Item::Weight(_) | Item::Constant(_))) => {
                let view = self.settled(view)?;
                let operand = match (operator, right) {
                    ("Add" | "Mul", Item::Weight(weight)) if !weight.transposed => Operand::Weight(weight),
                    ("Add" | "Mul", Item::Constant(constant)) => Operand::Constant(constant),
                    ("Sub", Item::Constant(constant)) => Operand::Constant(each(constant, |value| -value)?),
                    ("Div", Item::Constant(constant)) => {
                        Operand::Constant(each(constant, |value| 1.0 / value)?)
                    }
                    _ => return Err("subtracts or divides by a weight".into()),
                };
                let step = if matches!(operator, "Add" | "Sub") { Step::Bias } else { Step::Gain };
                self.with_operand(&view, &operand, step).map(Item::View)
            }
            _ => Err("joins values in a way that is no known pattern".into()),
        }
    }

    /// Whether a tensor of one number is the bias of one column, not a number for all.
    fn is_bias_of_one(&self, value: &Item, rank: usize) -> bool {
        let Item::View(view) = value else { return false };
        rank > 0 && view.axes.last().is_some_and(Vec::is_empty) && view.axes.len() > 1
    }

    /// A value and a number.
    fn with_number(&mut self, operator: &str, left: Item, number: f32) -> Result<Item, String> {
        let factor = if operator == "Div" { 1.0 / number } else { number };
        match (operator, left) {
            ("Mul" | "Div", Item::View(view)) => {
                Ok(Item::View(View { factor: view.factor * factor, ..view }))
            }
            ("Mul" | "Div", Item::Scores(scores)) if !scores.causal && !scores.shares => {
                Ok(Item::Scores(Scores { factor: scores.factor * factor, ..scores }))
            }
            ("Add", Item::Scores(scores)) if number == 0.0 => Ok(Item::Scores(scores)),
            ("Add", Item::Erf(of, false)) if number == 1.0 => Ok(Item::Erf(of, true)),
            ("Add", Item::Moment(Moment::Variance, of)) => Ok(Item::Moment(Moment::Padded(number), of)),
            ("Add" | "Sub", Item::View(view)) => {
                let number = if operator == "Sub" { -number } else { number };
                let view = self.settled(view)?;
                if number == 0.0 {
                    return Ok(Item::View(view));
                }
                let width = view.atoms.last().map_or(1, |(_, size)| *size);
                let lines = self.lines(&view, width)?;
                let operand = self.assembly.add(Op::constant(&vec![number; width], &[width]), &[])?;
                let node = self.assembly.add(Op::step(Step::Bias), &[lines, operand])?;
                Ok(Item::View(View { node, ..view }))
            }
            _ => Err("joins a value and a number in a way that is no known pattern".into()),
        }
    }

    /// A value times a number.
    pub fn scaled(&mut self, name: &str, factor: f32) -> Result<Item, String> {
        let view = self.lazy_view(name)?;
        Ok(Item::View(View { factor: view.factor * factor, ..view }))
    }

    /// `Pow` with a small whole number.
    pub fn power(&mut self, name: &str, exponent: &str) -> Result<Item, String> {
        let exponent = match self.item(exponent)? {
            Item::Constant(constant) => match constant.data {
                Data::Wholes(_) => constant.known()?.first().map(|number| *number as f32),
                _ => constant.single(),
            },
            Item::Weight(weight) => weight.tensor.single(),
            _ => None,
        };
        let times = exponent.filter(|exponent| *exponent == 2.0 || *exponent == 3.0);
        let times = times.ok_or("only squares and cubes are supported")?;
        if let (Item::Moment(Moment::Centered, of), 2.0) = (self.item(name)?, times) {
            return Ok(Item::Moment(Moment::Squared, of));
        }
        let view = self.view(name)?;
        let mut node = view.node;
        for _ in 1..times as usize {
            node = self.assembly.add(Op::step(Step::Multiply), &[node, view.node])?;
        }
        Ok(Item::View(View { node, ..view }))
    }

    /// `Sqrt`, in a normalisation that is written out.
    pub fn root(&mut self, name: &str) -> Result<Item, String> {
        match self.item(name)? {
            Item::Moment(Moment::Padded(epsilon), of) => Ok(Item::Moment(Moment::Deviation(epsilon), of)),
            _ => Err("a root is only supported in a normalisation".into()),
        }
    }

    /// `Erf` of a value over the root of 2, in a GELU that is written out.
    pub fn erf(&mut self, name: &str) -> Result<Item, String> {
        let view = self.lazy_view(name)?;
        match (view.factor - std::f32::consts::FRAC_1_SQRT_2).abs() < 1e-5 {
            true => Ok(Item::Erf(View { factor: 1.0, ..view }, false)),
            false => Err("the error function is only supported in a GELU".into()),
        }
    }

    /// A function of each number.
    pub fn activate(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let usual = |name: &str, usual: f32, only: f32| match settings.float(name, usual) {
            value if (value - only).abs() < 1e-6 => Ok(()),
            value => Err(format!("{name} {value} is not supported ({only} is)")),
        };
        let activation = match node.op_type.as_str() {
            "Relu" => Activation::Relu,
            "Tanh" => Activation::Tanh,
            "Sigmoid" => Activation::Sigmoid,
            "LeakyRelu" => {
                usual("alpha", 0.01, 0.01)?;
                Activation::LeakyRelu
            }
            "Elu" => {
                usual("alpha", 1.0, 1.0)?;
                Activation::Elu
            }
            _ => match settings.word("approximate", "none").as_str() {
                "tanh" => Activation::Gelu,
                "none" => Activation::GeluErf,
                other => return Err(format!("attribute `approximate` = \"{other}\" is not supported")),
            },
        };
        let view = self.view(node.input.first().map_or("", String::as_str))?;
        let node = self.assembly.activate(view.node, activation)?;
        Ok(Item::View(View { node, ..view }))
    }

    /// `Dropout`, which is trained with even where the file was written for use.
    pub fn dropout(&mut self, node: &Node, settings: Settings<'_>) -> Result<Vec<Item>, String> {
        let view = self.view(node.input.first().map_or("", String::as_str))?;
        let share = match node.input.get(1).filter(|name| !name.is_empty()) {
            Some(name) => self.weight(name)?.tensor.single(),
            None => Some(settings.float("ratio", 0.5)),
        };
        let share = share.filter(|share| (0.0..1.0).contains(share)).ok_or("its share makes no sense")?;
        let layer = self.assembly.next_dropout();
        let node = self.assembly.add(Op::Dropout(dropout::Dropout { share, layer }), &[view.node])?;
        Ok(vec![Item::View(View { node, ..view })])
    }
}

/// A function of each number of a constant.
fn each(constant: Constant, function: fn(f32) -> f32) -> Result<Constant, String> {
    match &constant.data {
        Data::Floats(values) => {
            let data = Data::Floats(values.iter().map(|value| function(*value)).collect());
            Ok(Constant { sizes: constant.sizes, data })
        }
        _ => Err("expected numbers with a fraction".into()),
    }
}
