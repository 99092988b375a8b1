//! Waits that the program may cancel, for languages whose signal handlers run between calls.

use std::cell::Cell;

thread_local! {
    static CHECK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// Runs `body`, in which collective calls of this thread ask `check` now and then while they wait, at
/// least once a second, and fail if it returns true. `check` is called without locks of the library.
pub fn cancellable<R>(check: fn() -> bool, body: impl FnOnce() -> R) -> R {
    struct Reset(Option<fn() -> bool>);
    impl Drop for Reset {
        fn drop(&mut self) {
            CHECK.set(self.0);
        }
    }
    let _reset = Reset(CHECK.replace(Some(check)));
    body()
}

/// True if a call within [`cancellable`] should end now.
#[must_use]
pub fn is_cancelled() -> bool {
    CHECK.get().is_some_and(|check| check())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_body_is_cancelled() {
        assert!(!is_cancelled());
        let inside = cancellable(
            || true,
            || {
                let within = cancellable(|| false, is_cancelled);
                (is_cancelled(), within)
            },
        );
        assert_eq!(inside, (true, false));
        assert!(!is_cancelled());
    }
}
