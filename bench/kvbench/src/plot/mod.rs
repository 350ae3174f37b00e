//! `kvbench plot`: the figures of the paper's §4.1 as SVG, and what growth costs.

mod bars;
mod growth;
mod progress;
mod svg;
mod tradeoff;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::medians;

#[derive(Args)]
pub struct Options {
    /// JSON lines that `kvbench run` wrote
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Directory for the pictures
    #[arg(long, default_value = "docs/bench")]
    out: PathBuf,
    /// Begins the name of every picture
    #[arg(long, default_value = "kv")]
    prefix: String,
}

pub fn run(options: &Options) -> Result<()> {
    let all = medians::read(&options.files)?;
    fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let mut pictures = progress::draw(&all);
    pictures.extend(bars::draw(&all));
    pictures.extend(tradeoff::draw(&all));
    pictures.extend(growth::draw(&all));
    for (name, svg) in pictures {
        let path = options.out.join(format!("{}-{name}.svg", options.prefix));
        fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", shown(&path));
    }
    Ok(())
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// A picture: the end of its file's name, and its text.
type Picture = (String, String);
