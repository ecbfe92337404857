//! The column to predict: classes or numbers, decided after all labels were seen.

use super::categories::not_utf8;
use super::problem::Problem;
use super::value::{number, shown};
use crate::narrow::WideTargets;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use thalweg_core::spec::data::TaskChoice;
use thalweg_core::{Error, Result, Task};

/// Whole numbers with more different values than this are a regression unless the job says otherwise.
pub(crate) const MOST_WHOLE_CLASSES: usize = 100;

/// Classes there can be at most.
pub(crate) const MOST_CLASSES: usize = 10_000;

/// The labels seen so far. `P` is a place in the source.
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

    /// Counts a label, already trimmed and not missing.
    pub(crate) fn add(&mut self, field: &[u8], place: P) {
        self.rows += 1;
        match number(field).filter(|value| (*value as f32).is_finite()) {
            Some(value) => {
                self.numbers += 1;
                self.whole &= value.fract() == 0.0 && value.abs() < 9e15;
            }
            None if self.first_text.is_none() => self.first_text = Some((place, shown(field))),
            None => {}
        }
        if !self.overflow && !self.seen.contains(field) {
            if self.undecodable.is_none() && std::str::from_utf8(field).is_err() {
                self.undecodable = Some((place, field.to_vec()));
            }
            self.seen.insert(field.to_vec());
            self.overflow = self.seen.len() > MOST_CLASSES;
        }
    }

    /// All labels from counts of them: the different ones (`more` if there are others), rows, and rows with numbers.
    pub(crate) fn of_counts<'a>(
        different: impl Iterator<Item = &'a [u8]>,
        more: bool,
        place: P,
        rows: u64,
        numbers: u64,
    ) -> LabelTally<P> {
        let mut tally = LabelTally::new();
        different.for_each(|label| tally.add(label, place));
        LabelTally { rows, numbers, overflow: tally.overflow || more, ..tally }
    }

    /// Decides what is learned. `describe` tells a place to the user.
    pub(crate) fn finish(
        self,
        choice: TaskChoice,
        column: &str,
        describe: impl Fn(P) -> Result<String>,
    ) -> Result<Labels> {
        let task = match choice {
            TaskChoice::Classification => Task::Classification,
            TaskChoice::Regression => Task::Regression,
            TaskChoice::Auto => self.guess(),
        };
        if let (Task::Classification, Some((place, label))) = (task, &self.undecodable) {
            return Err(not_utf8(column, label).at(&describe(*place)?));
        }
        match (task, self.first_text) {
            (Task::Regression, Some((place, text))) => {
                let problem = Problem {
                    hint: "fix it, or set data.task = \"classification\" or another data.label".into(),
                    ..Problem::not_a_number(column, &text)
                };
                Err(problem.at(&describe(place)?))
            }
            (Task::Regression, None) => Ok(Labels::Values),
            (Task::Classification, _) if self.overflow => Err(Error::data(format!(
                "the label column `{column}` has more than {} different values",
                self.seen.len().min(MOST_CLASSES)
            ))
            .hint("choose another column with data.label, or data.task = \"regression\" for numbers")),
            (Task::Classification, text) => {
                Classes::of_labels(&self.seen, text.is_none(), column).map(Labels::Classes)
            }
        }
    }

    fn guess(&self) -> Task {
        let spellings: HashSet<_> = self.seen.iter().map(|label| canonical(label).ok_or(label)).collect();
        let distinct = spellings.len();
        let many = self.overflow || distinct > MOST_WHOLE_CLASSES;
        let regression = if self.numbers == self.rows {
            !self.whole || many || distinct as u64 > (self.rows / 2).max(2)
        } else {
            // A few texts among many numbers are mistakes, not classes.
            many && self.numbers * 10 >= self.rows * 9
        };
        if regression { Task::Regression } else { Task::Classification }
    }
}

/// How labels become targets.
#[derive(Debug)]
pub(crate) enum Labels {
    /// One of these.
    Classes(Classes),
    /// The number itself.
    Values,
    /// They are not looked at: rows to be predicted by a model of this task.
    Unread(Task),
}

impl Labels {
    /// From a stored schema.
    pub(crate) fn known(task: Task, classes: &[String]) -> Labels {
        match task {
            Task::Classification => Labels::Classes(Classes::known(classes)),
            Task::Regression => Labels::Values,
        }
    }

    /// What is learned.
    pub(crate) fn task(&self) -> Task {
        match self {
            Labels::Classes(_) => Task::Classification,
            Labels::Values => Task::Regression,
            Labels::Unread(task) => *task,
        }
    }

    /// Targets for `rows` rows: empty, or all 0 where labels are not looked at.
    pub(crate) fn targets(&self, rows: usize) -> WideTargets {
        match self {
            Labels::Classes(_) => WideTargets::Classes(Vec::with_capacity(rows)),
            Labels::Values => WideTargets::Values(Vec::with_capacity(rows)),
            Labels::Unread(Task::Classification) => WideTargets::Classes(vec![0; rows]),
            Labels::Unread(Task::Regression) => WideTargets::Values(vec![0.0; rows]),
        }
    }

    /// The names of the classes; none for a regression.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Labels::Classes(classes) => classes.names.clone(),
            Labels::Values | Labels::Unread(_) => Vec::new(),
        }
    }
}

/// The number of each class.
#[derive(Debug)]
pub(crate) struct Classes {
    names: Vec<String>,
    numbers: HashMap<Vec<u8>, u32>,
    /// All names are numbers: `+1`, `1` and `1.0` are the same class.
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
        Ok(Classes::known(&names))
    }

    /// From the names of a stored schema.
    pub(crate) fn known(names: &[String]) -> Classes {
        let numbers =
            names.iter().enumerate().map(|(class, name)| (name.as_bytes().to_vec(), class as u32)).collect();
        let numeric = names.iter().all(|name| number(name.as_bytes()).is_some());
        Classes { names: names.to_vec(), numbers, numeric }
    }

    /// The class of a label, already trimmed. A final stop (as in the test part of UCI Adult) does not matter.
    pub(crate) fn number(&self, column: &str, field: &[u8]) -> Result<u32, Problem> {
        let find = |name: &[u8]| self.numbers.get(name).copied();
        find(field)
            .or_else(|| if self.numeric { find(canonical(field)?.as_bytes()) } else { None })
            .or_else(|| find(field.strip_suffix(b".")?))
            .ok_or_else(|| {
                Problem::unknown_class(column, &shown(field), self.names.iter().map(String::as_str))
            })
    }
}

/// One spelling for each number.
fn canonical(label: &[u8]) -> Option<String> {
    number(label).map(|value| format!("{}", value + 0.0))
}

fn by_value(one: &str, other: &str) -> Ordering {
    let value = |name: &str| number(name.as_bytes()).unwrap_or(f64::NAN);
    value(one).total_cmp(&value(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(labels: &[&str], choice: TaskChoice) -> Result<Labels> {
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
    fn a_text_among_many_numbers_is_a_mistake_with_a_place() {
        let mut labels: Vec<String> = (0..300).map(|n| format!("{n}.5")).collect();
        labels[16] = "abc".into();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let error = decide(&labels, TaskChoice::Auto).unwrap_err();
        assert_eq!(error.message, "a.csv line 17, column `y`: `abc` is not a number");
    }

    #[test]
    fn a_label_in_another_encoding_is_refused_with_its_place() {
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
    fn labels_are_found_in_other_spellings() {
        let classes = Classes::known(&["-1".into(), "1".into()]);
        assert_eq!(classes.number("y", b"+1.0").unwrap(), 1);
        assert!(classes.number("y", b"2").unwrap_err().what.contains("class `2`"));
        let classes = Classes::known(&["<=50K".into(), ">50K".into()]);
        assert_eq!(classes.number("y", b">50K.").unwrap(), 1);
    }
}
