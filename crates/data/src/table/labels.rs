//! The label column: classes or numbers, decided after all labels were read.

use super::categories::not_utf8;
use super::value::{parse_number, printable};
use super::value_error::ValueError;
use crate::offset_encoding::TargetBuilder;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use thalweg_core::spec::data::TaskChoice;
use thalweg_core::{Error, Result, Task};

/// More distinct integers than this are a regression unless the job sets the task.
pub(crate) const MAX_INTEGER_CLASSES: usize = 100;

/// Maximum number of classes.
pub(crate) const MAX_CLASSES: usize = 10_000;

/// Labels seen so far. `P` is a position in the source.
#[derive(Debug)]
pub(crate) struct LabelTally<P> {
    seen: HashSet<Vec<u8>>,
    overflow: bool,
    rows: u64,
    numbers: u64,
    whole: bool,
    first_text: Option<(P, String)>,
    /// The first label that is not UTF-8.
    undecodable: Option<(P, Vec<u8>)>,
}

impl<P: Copy> LabelTally<P> {
    pub(crate) fn new() -> LabelTally<P> {
        LabelTally {
            seen: HashSet::new(),
            overflow: false,
            rows: 0,
            numbers: 0,
            whole: true,
            first_text: None,
            undecodable: None,
        }
    }

    /// Adds a trimmed label that is not missing.
    pub(crate) fn add(&mut self, field: &[u8], position: P) {
        self.rows += 1;
        match parse_number(field).filter(|value| (*value as f32).is_finite()) {
            Some(value) => {
                self.numbers += 1;
                self.whole &= value.fract() == 0.0 && value.abs() < 9e15;
            }
            None if self.first_text.is_none() => self.first_text = Some((position, printable(field))),
            None => {}
        }
        if !self.overflow && !self.seen.contains(field) {
            if self.undecodable.is_none() && std::str::from_utf8(field).is_err() {
                self.undecodable = Some((position, field.to_vec()));
            }
            self.seen.insert(field.to_vec());
            self.overflow = self.seen.len() > MAX_CLASSES;
        }
    }

    /// A tally from counts: distinct labels (`more` if there are others), rows, and rows with numbers.
    pub(crate) fn of_counts<'a>(
        different: impl Iterator<Item = &'a [u8]>,
        more: bool,
        position: P,
        rows: u64,
        numbers: u64,
    ) -> LabelTally<P> {
        let mut tally = LabelTally::new();
        different.for_each(|label| tally.add(label, position));
        LabelTally { rows, numbers, overflow: tally.overflow || more, ..tally }
    }

    /// Decides the task. `describe` formats a position for messages.
    pub(crate) fn finish(
        self,
        choice: TaskChoice,
        column: &str,
        describe: impl Fn(P) -> Result<String>,
    ) -> Result<LabelEncoding> {
        let task = match choice {
            TaskChoice::Classification => Task::Classification,
            TaskChoice::Regression => Task::Regression,
            TaskChoice::Auto => self.guess(),
        };
        if let (Task::Classification, Some((position, label))) = (task, &self.undecodable) {
            return Err(not_utf8(column, label).at(&describe(*position)?));
        }
        match (task, self.first_text) {
            (Task::Regression, Some((position, text))) => {
                let problem = ValueError {
                    hint: "fix it, or set data.task = \"classification\" or another data.label".into(),
                    ..ValueError::not_a_number(column, &text)
                };
                Err(problem.at(&describe(position)?))
            }
            (Task::Regression, None) => Ok(LabelEncoding::Values),
            (Task::Classification, _) if self.overflow => Err(Error::data(format!(
                "the label column `{column}` has more than {} different values",
                self.seen.len().min(MAX_CLASSES)
            ))
            .hint("choose another column with data.label, or data.task = \"regression\" for numbers")),
            (Task::Classification, text) => {
                Classes::of_labels(&self.seen, text.is_none(), column).map(LabelEncoding::Classes)
            }
        }
    }

    fn guess(&self) -> Task {
        let spellings: HashSet<_> = self.seen.iter().map(|label| canonical(label).ok_or(label)).collect();
        let distinct = spellings.len();
        let many = self.overflow || distinct > MAX_INTEGER_CLASSES;
        let regression = if self.numbers == self.rows {
            !self.whole || many || distinct as u64 > (self.rows / 2).max(2)
        } else {
            // A few texts among many numbers are typos, not classes.
            many && self.numbers * 10 >= self.rows * 9
        };
        if regression { Task::Regression } else { Task::Classification }
    }
}

/// How labels become targets.
#[derive(Debug)]
pub(crate) enum LabelEncoding {
    Classes(Classes),
    /// The label is the target.
    Values,
    /// Labels are ignored: rows to predict with a model of this task.
    Unread(Task),
}

impl LabelEncoding {
    pub(crate) fn new(task: Task, classes: &[String]) -> LabelEncoding {
        match task {
            Task::Classification => LabelEncoding::Classes(Classes::new(classes)),
            Task::Regression => LabelEncoding::Values,
        }
    }

    pub(crate) fn task(&self) -> Task {
        match self {
            LabelEncoding::Classes(_) => Task::Classification,
            LabelEncoding::Values => Task::Regression,
            LabelEncoding::Unread(task) => *task,
        }
    }

    /// Builder for the targets of `rows` rows: empty, or zeros if labels are ignored.
    pub(crate) fn targets(&self, rows: usize) -> TargetBuilder {
        match self {
            LabelEncoding::Classes(_) => TargetBuilder::Classes(Vec::with_capacity(rows)),
            LabelEncoding::Values => TargetBuilder::Values(Vec::with_capacity(rows)),
            LabelEncoding::Unread(Task::Classification) => TargetBuilder::Classes(vec![0; rows]),
            LabelEncoding::Unread(Task::Regression) => TargetBuilder::Values(vec![0.0; rows]),
        }
    }

    /// Class names; empty for a regression.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            LabelEncoding::Classes(classes) => classes.names.clone(),
            LabelEncoding::Values | LabelEncoding::Unread(_) => Vec::new(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Classes {
    names: Vec<String>,
    indices: HashMap<Vec<u8>, u32>,
    /// Whether all names are numbers: then `+1`, `1` and `1.0` are the same class.
    numeric: bool,
}

impl Classes {
    fn of_labels(seen: &HashSet<Vec<u8>>, numeric: bool, column: &str) -> Result<Classes> {
        let mut names = HashSet::new();
        for label in seen {
            let name = if numeric { canonical(label) } else { None };
            names.insert(name.unwrap_or_else(|| String::from_utf8_lossy(label).into_owned()));
        }
        let mut names: Vec<String> = names.into_iter().collect();
        if let [name] = names.as_slice() {
            return Err(Error::data(format!("every row has the same label `{name}` in column `{column}`"))
                .hint("a classification needs at least two classes: check data.label and the file"));
        }
        if numeric {
            names.sort_by(|one, other| by_value(one, other));
        } else {
            names.sort();
        }
        Ok(Classes::new(&names))
    }

    pub(crate) fn new(names: &[String]) -> Classes {
        let indices =
            names.iter().enumerate().map(|(class, name)| (name.as_bytes().to_vec(), class as u32)).collect();
        let numeric = names.iter().all(|name| parse_number(name.as_bytes()).is_some());
        Classes { names: names.to_vec(), indices, numeric }
    }

    /// The class of a trimmed label. A trailing period is ignored, as in the test part of UCI Adult.
    pub(crate) fn index(&self, column: &str, field: &[u8]) -> Result<u32, ValueError> {
        let find = |name: &[u8]| self.indices.get(name).copied();
        find(field)
            .or_else(|| if self.numeric { find(canonical(field)?.as_bytes()) } else { None })
            .or_else(|| find(field.strip_suffix(b".")?))
            .ok_or_else(|| {
                ValueError::unknown_class(column, &printable(field), self.names.iter().map(String::as_str))
            })
    }
}

/// One text per number, so that `+1` and `1.0` are equal.
fn canonical(label: &[u8]) -> Option<String> {
    parse_number(label).map(|value| format!("{}", value + 0.0))
}

fn by_value(one: &str, other: &str) -> Ordering {
    let value = |name: &str| parse_number(name.as_bytes()).unwrap_or(f64::NAN);
    value(one).total_cmp(&value(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(labels: &[&str], choice: TaskChoice) -> Result<LabelEncoding> {
        let mut tally = LabelTally::new();
        labels.iter().enumerate().for_each(|(row, label)| tally.add(label.as_bytes(), row));
        tally.finish(choice, "y", |row| Ok(format!("a.csv line {}", row + 1)))
    }

    fn classes(labels: &[&str]) -> Vec<String> {
        decide(labels, TaskChoice::Auto).unwrap().names()
    }

    #[test]
    fn texts_and_few_whole_numbers_are_classes_in_order() {
        assert_eq!(classes(&["b", "a", "b"]), ["a", "b"]);
        assert_eq!(classes(&["10", "9", "10", "9", "2", "2"]), ["2", "9", "10"]);
        assert_eq!(classes(&["+1", "-1", "1.0", "-1"]), ["-1", "1"]);
        assert_eq!(classes(&["0", "1"]), ["0", "1"]);
    }

    #[test]
    fn fractions_and_many_different_numbers_are_a_regression() {
        assert!(classes(&["1.5", "2", "1.5", "2"]).is_empty());
        assert!(classes(&["1", "2", "3", "4"]).is_empty(), "as many values as rows");
        let many: Vec<String> = (0..300).map(|n| (n % 101).to_string()).collect();
        assert!(classes(&many.iter().map(String::as_str).collect::<Vec<_>>()).is_empty());
    }

    #[test]
    fn a_text_among_many_numbers_is_an_error_with_its_location() {
        let mut labels: Vec<String> = (0..300).map(|n| format!("{n}.5")).collect();
        labels[16] = "abc".into();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let error = decide(&labels, TaskChoice::Auto).unwrap_err();
        assert_eq!(error.message, "a.csv line 17, column `y`: `abc` is not a number");
    }

    #[test]
    fn a_label_in_another_encoding_is_refused_with_its_location() {
        let mut tally = LabelTally::new();
        for (row, label) in [&b"blue"[..], b"caf\xe9", b"na\xefve"].into_iter().enumerate() {
            tally.add(label, row);
        }
        let error = tally.finish(TaskChoice::Auto, "y", |row| Ok(format!("a.csv line {}", row + 1)));
        let error = error.unwrap_err();
        assert_eq!(error.message, "a.csv line 2, column `y`: `caf\u{fffd}` is not UTF-8");
        assert!(error.hint.unwrap().contains("iconv"));
    }

    #[test]
    fn one_class_is_refused() {
        assert!(decide(&["a", "a"], TaskChoice::Auto).unwrap_err().message.contains("same label `a`"));
        assert!(decide(&["3", "3"], TaskChoice::Auto).is_err());
        assert!(decide(&["3", "3"], TaskChoice::Regression).is_ok());
    }

    #[test]
    fn labels_match_in_equivalent_forms() {
        let classes = Classes::new(&["-1".into(), "1".into()]);
        assert_eq!(classes.index("y", b"+1.0").unwrap(), 1);
        assert!(classes.index("y", b"2").unwrap_err().what.contains("class `2`"));
        let classes = Classes::new(&["<=50K".into(), ">50K".into()]);
        assert_eq!(classes.index("y", b">50K.").unwrap(), 1);
    }
}
