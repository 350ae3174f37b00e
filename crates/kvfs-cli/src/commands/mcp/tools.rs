//! The tools: their names, parameters and descriptions.

use serde_json::{Map, Value, json};

use super::arguments::{Arguments, Told};
use super::session::Session;
use super::{branches, command, files, keys, transactions};
use crate::support::terminal::output::Outcome;

pub struct Tool {
    pub name: &'static str,
    about: &'static str,
    pub takes: &'static [Parameter],
    effect: Effect,
    pub run: fn(&mut Session, &Arguments<'_>) -> Outcome<Told>,
}

/// The effect of a tool, by which a client may decide to ask a person.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    /// Makes changes that can be undone.
    Adds,
    /// Makes changes that others see or that cannot be undone.
    Destroys,
}

pub struct Parameter {
    pub name: &'static str,
    pub kind: Kind,
    pub needed: bool,
    pub about: &'static str,
}

#[derive(Clone, Copy)]
pub enum Kind {
    Text,
    Number,
    Flag,
    Texts,
    Choice(&'static [&'static str]),
}

impl Kind {
    pub fn says(self) -> String {
        match self {
            Kind::Text => "a string is wanted".into(),
            Kind::Number => "a whole number from 0 on is wanted".into(),
            Kind::Flag => "true or false is wanted".into(),
            Kind::Texts => "a list of strings, not an empty one, is wanted".into(),
            Kind::Choice(all) => format!("one of these is wanted: {}", all.join(", ")),
        }
    }

    fn schema(self) -> Value {
        match self {
            Kind::Text => json!({"type": "string"}),
            Kind::Number => json!({"type": "integer", "minimum": 0}),
            Kind::Flag => json!({"type": "boolean"}),
            Kind::Texts => json!({"type": "array", "minItems": 1, "items": {"type": "string"}}),
            Kind::Choice(all) => json!({"type": "string", "enum": all}),
        }
    }
}

const fn needed(name: &'static str, kind: Kind, about: &'static str) -> Parameter {
    Parameter { name, kind, needed: true, about }
}

const fn may(name: &'static str, kind: Kind, about: &'static str) -> Parameter {
    Parameter { name, kind, needed: false, about }
}

const TRANSACTION: Parameter = needed("transaction", Kind::Number, "The number that `begin` gave.");
const IN_TRANSACTION: Parameter = may(
    "transaction",
    Kind::Number,
    "As this transaction sees it; without it, the store as it is for all.",
);
const SNAPSHOT: Parameter = may("snapshot", Kind::Text, "As it was in the snapshot of this name.");
const PATH: Parameter =
    needed("path", Kind::Text, "From the root of the store, such as src/main.rs.");
const DICTIONARY: Parameter =
    may("dictionary", Kind::Text, "A key space by its name; without it, \"0\".");
const KEY: Parameter = needed("key", Kind::Text, "The key.");

const BRANCH: Parameter = needed("branch", Kind::Text, "The name of the branch.");
const OURS: Parameter = may(
    "ours",
    Kind::Texts,
    "Paths, or keys as dictionary:key, where what is changed into stays as it is; \".\" is everything.",
);
const THEIRS: Parameter =
    may("theirs", Kind::Texts, "Paths where it becomes as what is brought in.");
const BOTH: Parameter =
    may("both", Kind::Texts, "Paths where both versions are kept, beside each other.");
const MERGES: &[Parameter] = &[
    BRANCH,
    may("into", Kind::Text, "Into this branch, and not into what it was made of; \"\": the store."),
    OURS,
    THEIRS,
    BOTH,
];
const REBASES: &[Parameter] = &[
    may("branch", Kind::Text, "The name of the branch."),
    may("transaction", Kind::Number, "The number of an open transaction, instead of a branch."),
    OURS,
    THEIRS,
    BOTH,
];

const TOOLS: &[Tool] = &[
    Tool {
        name: "begin",
        about: "Begin a transaction over the files and keys of the store. Gives its number. It is aborted when this session ends, unless it is committed or kept before.",
        takes: &[
            may("label", Kind::Text, "What it is for, in a few words: people see it in listings."),
            may(
                "isolation",
                Kind::Choice(&["si", "ser"]),
                "si (default): of two that change the same the first to commit wins. ser: what it reads or writes is locked.",
            ),
            may("durable", Kind::Flag, "It survives a crash of the store's daemon."),
            may(
                "limit",
                Kind::Number,
                "Bytes that its changes may take: what would take more fails as on a full disk.",
            ),
            may(
                "limit_of_files",
                Kind::Number,
                "Files that it may make: making more fails as on a full disk.",
            ),
            may(
                "branch",
                Kind::Text,
                "It is a transaction of this branch, and its commit changes the branch alone.",
            ),
            may(
                "within",
                Kind::Number,
                "The number of an open transaction: this one sees what that one has changed so far, and its commit makes its changes a part of that one. For attempts of which some are given up; of several the first to commit wins.",
            ),
        ],
        effect: Effect::Adds,
        run: transactions::begin,
    },
    Tool {
        name: "run",
        about: "Run a shell command in a transaction, at the root of the store. It sees the store as the transaction does, at the same paths as ever; all it writes there is part of the transaction. Gives its exit code and what it printed. Processes that it leaves behind are ended. Clients of the store's socket in it write in open transactions alone, and end none.",
        takes: &[
            TRANSACTION,
            needed("command", Kind::Text, "For sh -c."),
            may("directory", Kind::Text, "Where it runs, from the root of the store."),
            may("input", Kind::Text, "Its standard input."),
            may("timeout_seconds", Kind::Number, "When it is ended; there is a limit in any case."),
            may("output_limit", Kind::Number, "Bytes of its output to give back, at most."),
        ],
        effect: Effect::Adds,
        run: command::run,
    },
    Tool {
        name: "diff",
        about: "Show what a transaction would change: A added, D removed, M changed, R renamed, for files and keys. With `patch` the lines of files, too. With `snapshot` instead of `transaction`: what has changed in the store since then.",
        takes: &[
            may("transaction", Kind::Number, "The number that `begin` gave."),
            may("snapshot", Kind::Text, "The name of a snapshot."),
            may("patch", Kind::Flag, "Show contents, in git's format."),
        ],
        effect: Effect::Reads,
        run: transactions::diff,
    },
    Tool {
        name: "revert",
        about: "Take back what a transaction has changed at some paths, and below them. The rest of it stays.",
        takes: &[TRANSACTION, needed("paths", Kind::Texts, "As `diff` shows them.")],
        effect: Effect::Adds,
        run: transactions::revert,
    },
    Tool {
        name: "commit",
        about: "Make everything that a transaction has changed part of the store, at once; it is on disk then. Fails as a whole where others have changed the same.",
        takes: &[
            TRANSACTION,
            may("state", Kind::Text, "Only in this state, as the last line of `diff` has it."),
        ],
        effect: Effect::Destroys,
        run: transactions::commit,
    },
    Tool {
        name: "abort",
        about: "End a transaction without a trace.",
        takes: &[TRANSACTION],
        effect: Effect::Adds,
        run: transactions::abort,
    },
    Tool {
        name: "keep",
        about: "Leave a transaction open when this session ends, for a person to look at and to commit or abort.",
        takes: &[TRANSACTION],
        effect: Effect::Adds,
        run: transactions::keep,
    },
    Tool {
        name: "transactions",
        about: "List the open transactions of the store, those of others included.",
        takes: &[],
        effect: Effect::Reads,
        run: transactions::list,
    },
    Tool {
        name: "snapshot",
        about: "Keep the state that the store has now, committed changes only, under a name.",
        takes: &[needed("name", Kind::Text, "The name.")],
        effect: Effect::Adds,
        run: transactions::snapshot,
    },
    Tool {
        name: "snapshots",
        about: "List the snapshots, the oldest first.",
        takes: &[],
        effect: Effect::Reads,
        run: transactions::snapshots,
    },
    Tool {
        name: "rollback",
        about: "Give the whole store the state of a snapshot. What everybody has changed since is gone, and all open transactions are aborted.",
        takes: &[needed("snapshot", Kind::Text, "The name of the snapshot.")],
        effect: Effect::Destroys,
        run: transactions::rollback,
    },
    Tool {
        name: "undo",
        about: "Begin a transaction that undoes the last commit of another one, files and keys, when it is committed. What others have done since stays; where they have changed the same, it says what.",
        takes: &[may(
            "commit",
            Kind::Number,
            "Not the last commit but this one, by its number in `kvfs history`.",
        )],
        effect: Effect::Adds,
        run: transactions::undo,
    },
    Tool {
        name: "branch",
        about: "Make a branch: a copy of the whole store that costs nothing until it is changed. For work of several steps that others are to see later or never. It stays when this session ends; `merge` brings it into what it was made of, and `drop` gives it up.",
        takes: &[
            needed("name", Kind::Text, "The name of the branch."),
            may("snapshot", Kind::Text, "Of this snapshot, not of what is there now."),
            may("of", Kind::Text, "Of this branch, not of the store."),
            may(
                "limit",
                Kind::Number,
                "Bytes that it may take of its own: what would take more fails in it as on a full disk.",
            ),
            may(
                "limit_of_files",
                Kind::Number,
                "Files that it may have of its own: making more fails in it as on a full disk.",
            ),
        ],
        effect: Effect::Adds,
        run: branches::branch,
    },
    Tool {
        name: "branches",
        about: "List the branches, those of others included.",
        takes: &[],
        effect: Effect::Reads,
        run: branches::list,
    },
    Tool {
        name: "merge",
        about: "Begin a transaction that brings what a branch has changed into what it was made of, when it is committed. What both have changed is a conflict: then nothing is begun, and all of it is listed.",
        takes: MERGES,
        effect: Effect::Adds,
        run: branches::merge,
    },
    Tool {
        name: "rebase",
        about: "Begin a transaction that brings into a branch what has changed since in what it was made of. Otherwise as `merge`. Or, for a transaction whose commit met a conflict: bring it up to what others have committed since; it goes on under another number, and can be committed then.",
        takes: REBASES,
        effect: Effect::Adds,
        run: branches::rebase,
    },
    Tool {
        name: "drop",
        about: "Drop a branch that was made in this session, with all in it that was not merged. Its open transactions are aborted.",
        takes: &[BRANCH],
        effect: Effect::Destroys,
        run: branches::drop_branch,
    },
    Tool {
        name: "read_file",
        about: "Read a file. What is not text comes as base64:…",
        takes: &[
            PATH,
            IN_TRANSACTION,
            SNAPSHOT,
            may("offset", Kind::Number, "The first byte to read."),
            may("limit", Kind::Number, "Bytes to read, at most."),
        ],
        effect: Effect::Reads,
        run: files::read,
    },
    Tool {
        name: "write_file",
        about: "Write a whole file in a transaction; directories on the way are made.",
        takes: &[
            TRANSACTION,
            PATH,
            may("content", Kind::Text, "Its new content."),
            may("content_base64", Kind::Text, "Instead, where it is not text."),
            may("executable", Kind::Flag, "Whether it can be executed; without it, as it was."),
        ],
        effect: Effect::Adds,
        run: files::write,
    },
    Tool {
        name: "list_files",
        about: "List a directory, by name: kind, size and name of each entry.",
        takes: &[
            may("path", Kind::Text, "From the root of the store; without it, the root."),
            IN_TRANSACTION,
            SNAPSHOT,
            may("recursive", Kind::Flag, "Everything below, too."),
        ],
        effect: Effect::Reads,
        run: files::list,
    },
    Tool {
        name: "get_key",
        about: "Get the value of a key. What is not text comes as base64:…",
        takes: &[KEY, DICTIONARY, IN_TRANSACTION],
        effect: Effect::Reads,
        run: keys::get,
    },
    Tool {
        name: "put_key",
        about: "Set a key in a transaction.",
        takes: &[
            TRANSACTION,
            KEY,
            may("value", Kind::Text, "Its new value."),
            may("value_base64", Kind::Text, "Instead, where it is not text."),
            DICTIONARY,
        ],
        effect: Effect::Adds,
        run: keys::put,
    },
    Tool {
        name: "delete_key",
        about: "Delete a key in a transaction.",
        takes: &[TRANSACTION, KEY, DICTIONARY],
        effect: Effect::Adds,
        run: keys::delete,
    },
    Tool {
        name: "range_keys",
        about: "List keys and values in the order of the keys, from `start` up to `end`, without `end`.",
        takes: &[
            may("start", Kind::Text, "The first key; without it, from the beginning."),
            may("end", Kind::Text, "The key to stop before; without it, to the end."),
            may("limit", Kind::Number, "How many, at most (100)."),
            DICTIONARY,
            IN_TRANSACTION,
        ],
        effect: Effect::Reads,
        run: keys::range,
    },
];

pub fn find(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

pub fn exists(name: &str) -> bool {
    find(name).is_some()
}

pub fn names() -> Vec<&'static str> {
    TOOLS.iter().map(|tool| tool.name).collect()
}

/// Returns the descriptions of the tools for a client.
pub fn list(without: &[String]) -> Vec<Value> {
    let offered = TOOLS.iter().filter(|tool| !without.iter().any(|name| name == tool.name));
    offered.map(described).collect()
}

fn described(tool: &Tool) -> Value {
    let mut properties = Map::new();
    for parameter in tool.takes {
        let mut schema = parameter.kind.schema();
        schema["description"] = json!(parameter.about);
        properties.insert(parameter.name.into(), schema);
    }
    let needed: Vec<&str> = tool.takes.iter().filter(|p| p.needed).map(|p| p.name).collect();
    json!({
        "name": tool.name,
        "description": tool.about,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": needed,
            "additionalProperties": false,
        },
        "annotations": {
            "readOnlyHint": tool.effect == Effect::Reads,
            "destructiveHint": tool.effect == Effect::Destroys,
            // A command may reach beyond the store.
            "openWorldHint": tool.name == "run",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_what_it_is_and_takes() {
        for tool in TOOLS {
            assert_eq!(TOOLS.iter().filter(|t| t.name == tool.name).count(), 1, "{}", tool.name);
            assert!(tool.about.ends_with('.') || tool.about.ends_with('…'), "{}", tool.name);
            for parameter in tool.takes {
                let same = tool.takes.iter().filter(|p| p.name == parameter.name).count();
                assert_eq!(same, 1, "{} of {}", parameter.name, tool.name);
            }
        }
        let all = list(&["commit".into()]);
        assert_eq!(all.len(), TOOLS.len() - 1);
        assert!(all.iter().all(|tool| tool["name"] != "commit"));
    }
}
