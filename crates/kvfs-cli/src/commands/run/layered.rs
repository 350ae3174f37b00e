//! `kvfs run --layer`: the program works in a kernel overlay above its transaction, and the files
//! of the overlay are folded into the transaction when it has ended.

use std::path::PathBuf;

use super::{Args, Isolation};
use crate::support::layered_runs::fold;
use crate::support::layered_runs::scratch::{self, Scratch};
use crate::support::machine::descendants;
use crate::support::machine::sandbox::Overlay;
use crate::support::mounts::daemons::Record;
use crate::support::mounts::mounted::Mounted;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

/// Fails if another option does not go together with the layer.
pub fn refuse_others(args: &Args) -> Outcome {
    let refused = |option: &str, why: &str| {
        let what = format!("{option} does not go together with --layer: {why}");
        Err(Failure::new(Exit::Usage, what).hint("leave out one of the two"))
    };
    if args.how.isolation == Isolation::Ser {
        return refused("--isolation ser", "what the program reads in the layer is not locked");
    }
    if args.how.durable {
        return refused(
            "--durable",
            "the transaction would survive a crash without the files of its layer",
        );
    }
    if args.how.idle.is_some() {
        return refused(
            "--idle",
            "the transaction is not used while the program works in its layer",
        );
    }
    if args.chroot {
        return refused("--chroot", "an overlay is mounted in a mount name space");
    }
    Ok(())
}

/// The layer of a run.
pub struct Layered {
    scratch: Scratch,
    /// The view of the transaction, which is the lower layer.
    view: PathBuf,
    id: u64,
    /// The processes that ran already before the program.
    others: Vec<i32>,
}

impl Layered {
    /// Makes a layer above the view of transaction `id`.
    pub fn make(args: &Args, mounted: &Mounted, id: u64) -> Outcome<Layered> {
        let place = args.scratch.clone().unwrap_or_else(|| {
            let record =
                Record::all().into_iter().find(|r| r.socket.as_ref() == Some(&mounted.socket));
            scratch::place(record.map(|record| record.store).as_deref())
        });
        let view = mounted.view(id);
        let scratch = Scratch::make(&place, &view)?;
        // A shell that has become this process may have left its own children to it.
        let others = descendants::all_but(None).iter().map(|running| running.process).collect();
        Ok(Layered { scratch, view, id, others })
    }

    /// Returns the overlay in which the program runs.
    pub fn overlay(&self) -> Outcome<Overlay> {
        self.scratch.overlay(&self.view)
    }

    /// Ends processes that the program has left running, since they would continue to write to the
    /// layer, and folds the layer into the transaction if that is `wanted`. The layer is removed in
    /// any case.
    pub fn end(self, mounted: &mut Mounted, wanted: bool, output: &Output) -> Outcome {
        let running = descendants::all_without(&self.others);
        if !running.is_empty() {
            let told = descendants::told(&running);
            let left = descendants::end_all_without(&self.others);
            if !left.is_empty() {
                let what = format!(
                    "the program has left others running that cannot be ended, and that may change \
                     its layer: {}",
                    descendants::told(&left)
                );
                return Err(Failure::new(Exit::Failed, what).hint("nothing was changed"));
            }
            output.note(format!("ended what the program had left running: {told}"));
        }
        if let Some(place) = self.scratch.is_full() {
            output.note(format!(
                "the scratch directory in {} is full, and the program may have failed for that: \
                 --scratch DIR names another place",
                place.shown()
            ));
        }
        let folded = if wanted { self.fold(mounted, output) } else { Ok(()) };
        if let Err(failure) = self.scratch.remove() {
            output.note(&failure.message);
        }
        folded
    }

    fn fold(&self, mounted: &mut Mounted, output: &Output) -> Outcome {
        let layers = self.scratch.layers(&self.view)?;
        let folded = fold::fold(mounted, self.id, &layers, self.scratch.start(), output);
        let skipped = folded.map_err(|failure| {
            let what = "the files of the layer cannot be put into the transaction";
            let hint = failure.hint.clone();
            let failure = Failure::new(failure.exit, format!("{what}: {}", failure.message));
            match hint {
                Some(hint) => failure.hint(format!("{hint}; nothing was changed")),
                None => failure.hint("nothing was changed"),
            }
        })?;
        if skipped > 0 {
            output.note(format!(
                "extended attributes of a kind that a store does not take are left out: {skipped}"
            ));
        }
        Ok(())
    }
}
