//! Damage in the files of a store, and data that repairs could not restore, as JSON.

use serde_json::{Value, json};

use crate::support::stores::tree;

/// Reports the damage that the daemon finds in the files of its store, with the numbers of files
/// and directories.
pub fn of_files(fs: &kvfs::Fs) -> kvdb::Result<String> {
    let report = fs.verify().map_err(|e| match e {
        kvfs::Error::Store(error) => error,
        other => kvdb::Error::Corrupt(other.to_string()),
    })?;
    let losses = fs.losses().map_err(|e| match e {
        kvfs::Error::Store(error) => error,
        other => kvdb::Error::Corrupt(other.to_string()),
    })?;
    let losses: Vec<Value> = losses.into_iter().map(|loss| Loss::from(loss).to_json()).collect();
    let findings: Vec<Value> =
        report.findings.iter().map(|f| json!({"ino": f.ino, "what": f.what})).collect();
    Ok(json!({
        "findings": findings, "directories": report.directories, "files": report.files,
        "others": report.others, "names": report.names, "pages": report.pages,
        "bytes": report.bytes, "orphans": report.orphans, "lost_pages": report.lost_pages,
        "losses": losses,
    })
    .to_string())
}

/// Data that a repair could not restore.
pub struct Loss {
    pub time: u64,
    pub what: String,
}

impl From<kvfs::Loss> for Loss {
    fn from(loss: kvfs::Loss) -> Loss {
        Loss { time: loss.time, what: loss.what }
    }
}

impl Loss {
    pub fn to_json(&self) -> Value {
        json!({"time": self.time, "what": self.what})
    }

    pub fn of_json(value: &Value) -> Option<Loss> {
        Some(Loss { time: value["time"].as_u64()?, what: value["what"].as_str()?.into() })
    }

    pub fn line(&self) -> String {
        let time = kvfs::Timestamp { secs: self.time as i64, nanos: 0 };
        format!("lost: {} (noted at {} UTC)\n", self.what, tree::time_text(time))
    }
}
