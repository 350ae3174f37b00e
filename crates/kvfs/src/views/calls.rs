//! The calls of [`Views`](super::Views) that its parts carry out, by part.

mod branches;
mod merges;
mod transactions;
