//! Parts of a state that states share until a step changes them: a step mostly changes one process.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// A part of a state.
pub trait Part: Clone {
    /// Forgets what was derived from it, because it is about to change.
    fn forget_derived(&mut self) {}
}

/// A part that is copied before it is changed, if other states have it too.
#[derive(Clone)]
pub struct Shared<T>(Rc<T>);

impl<T> Shared<T> {
    pub fn new(part: T) -> Shared<T> {
        Shared(Rc::new(part))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Part> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        let part = Rc::make_mut(&mut self.0);
        part.forget_derived();
        part
    }
}
