//! The states in which a store may be after a power cut: the state after each step since the last
//! step that is certainly durable.

pub struct Possible<S> {
    /// Oldest first, never empty.
    pub states: Vec<S>,
}

impl<S: Clone> Possible<S> {
    pub fn new(state: S) -> Possible<S> {
        Possible { states: vec![state] }
    }

    pub fn newest(&self) -> &S {
        &self.states[self.states.len() - 1]
    }

    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// A step is about to be attempted.
    pub fn attempt(&mut self, change: impl FnOnce(&mut S)) {
        let mut next = self.newest().clone();
        change(&mut next);
        self.states.push(next);
    }

    /// The step was refused, so its effect may never be visible.
    pub fn refused(&mut self) {
        self.states.pop();
    }

    /// The newest state is on disk.
    pub fn certain(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    /// Keeps the newest state that may equal the found one. Returns `None` if there is no such
    /// state.
    pub fn keep(&mut self, is_it: impl FnMut(&S) -> bool) -> Option<&S> {
        let at = self.states.iter().rposition(is_it)?;
        self.states = vec![self.states.swap_remove(at)];
        Some(self.newest())
    }
}
