//! Text generation: continues a text, and prints character by character.

use super::{PredictArgs, unwritable};
use crate::command::rows::open;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use thalweg_core::{Error, Result};
use thalweg_graph::SequenceSampler;
use thalweg_train::SavedModel;

/// Writes the prompt and its continuation.
pub(super) fn write(
    args: &PredictArgs,
    saved: &SavedModel,
    alphabet: &[char],
    output: &mut impl Write,
) -> Result<()> {
    let prompt = prompt(&args.input, alphabet)?;
    let symbols =
        prompt.chars().map(|character| index_of(character, alphabet)).collect::<Result<Vec<u32>>>()?;
    if saved.combine.is_some() {
        return Err(Error::job("an ensemble predicts the next character of each row, and continues no text")
            .hint("--format csv predicts row by row"));
    }
    let (network, parameters) = saved.network()?;
    let mut text = SequenceSampler::new(network, parameters, &symbols, args.temperature, args.seed)?;
    let mut show = |text: &str| {
        output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(|error| unwritable(&error))
    };
    show(&prompt)?;
    for _ in 0..args.length {
        let character = alphabet.get(text.next_symbol()? as usize).copied().unwrap_or('?');
        show(character.encode_utf8(&mut [0; 4]))?;
    }
    show("\n")
}

/// The text itself, or the content of a file of that name or of standard input. If it is empty, a newline, or the first
/// character of the alphabet.
fn prompt(input: &str, alphabet: &[char]) -> Result<String> {
    let default =
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
    // Editors and shells add the final newline.
    let text = text.strip_suffix('\n').map(str::to_string).unwrap_or(text);
    Ok(if text.is_empty() { default() } else { text })
}

fn index_of(character: char, alphabet: &[char]) -> Result<u32> {
    match alphabet.iter().position(|known| *known == character) {
        Some(index) => Ok(index as u32),
        None => Err(Error::data(format!(
            "the text holds {character:?}, a character the model has not seen in training"
        ))),
    }
}
