//! Session memory: an embedder's data that lives as long as its session is in memory. It is never stored, exported or sent.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

type Values = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

/// Values by type, one of each. Cheap to clone; the clones share the values.
#[derive(Clone, Default)]
pub struct SessionMemory(Arc<Mutex<Values>>);

impl SessionMemory {
    /// Returns the value of this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let value = self.0.lock().get(&TypeId::of::<T>()).cloned();
        value.and_then(|value| value.downcast().ok())
    }

    /// Returns the value of this type. If there is none, inserts the value that `make` returns.
    pub fn get_or_insert_with<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        if let Some(value) = self.get() {
            return value;
        }
        // Made outside the lock: `make` may use the memory itself.
        let made: Arc<T> = Arc::new(make());
        let mut values = self.0.lock();
        let kept = values.entry(TypeId::of::<T>()).or_insert_with(|| made.clone()).clone();
        kept.downcast().unwrap_or(made)
    }

    /// Sets the value of this type, and replaces an earlier one.
    pub fn insert<T: Any + Send + Sync>(&self, value: T) {
        self.0.lock().insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// Removes the value of this type.
    pub fn remove<T: Any + Send + Sync>(&self) {
        self.0.lock().remove(&TypeId::of::<T>());
    }
}

impl fmt::Debug for SessionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values may be secrets.
        write!(f, "SessionMemory({} values)", self.0.lock().len())
    }
}
