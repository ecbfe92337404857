//! A text written on by a model of texts, shown character by character.

use super::{PredictArgs, unwritable};
use crate::command::rows::open;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use thalweg_core::{Error, Result};
use thalweg_graph::Continuation;
use thalweg_train::SavedModel;

/// Writes the beginning, and what follows it.
pub(super) fn write(
    args: &PredictArgs,
    saved: &SavedModel,
    alphabet: &[char],
    output: &mut impl Write,
) -> Result<()> {
    let beginning = beginning(&args.input, alphabet)?;
    let symbols =
        beginning.chars().map(|character| number(character, alphabet)).collect::<Result<Vec<u32>>>()?;
    let (network, parameters) = saved.network()?;
    let mut text = Continuation::new(network, parameters, &symbols, args.temperature, args.seed)?;
    let mut show = |text: &str| {
        output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(|error| unwritable(&error))
    };
    show(&beginning)?;
    for _ in 0..args.length {
        let character = alphabet.get(text.step()? as usize).copied().unwrap_or('?');
        show(character.encode_utf8(&mut [0; 4]))?;
    }
    show("\n")
}

/// The text itself, or what a file of that name or standard input holds. Nothing typed and nobody to type it: a new
/// line, or whatever character there is.
fn beginning(input: &str, alphabet: &[char]) -> Result<String> {
    let fresh =
        || if alphabet.contains(&'\n') { "\n".to_string() } else { alphabet.iter().take(1).collect() };
    let text = match input {
        "-" if io::stdin().is_terminal() => String::new(),
        "-" => {
            let mut text = String::new();
            let read = io::stdin().read_to_string(&mut text);
            read.map_err(|error| Error::io("cannot read standard input", &error))?;
            text
        }
        path if Path::new(path).is_file() => {
            let mut text = String::new();
            open(path)?
                .read_to_string(&mut text)
                .map_err(|error| Error::io(format!("cannot read {path} as text"), &error))?;
            text
        }
        text => text.into(),
    };
    // The end of the last line is the editor's or the shell's, not the text's.
    let text = text.strip_suffix('\n').map(str::to_string).unwrap_or(text);
    Ok(if text.is_empty() { fresh() } else { text })
}

fn number(character: char, alphabet: &[char]) -> Result<u32> {
    match alphabet.iter().position(|known| *known == character) {
        Some(place) => Ok(place as u32),
        None => Err(Error::data(format!(
            "the text holds {character:?}, a character the model has not seen in training"
        ))),
    }
}
